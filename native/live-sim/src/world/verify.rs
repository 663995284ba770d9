//! At the end of a run: the images are compared, a bit of the secondary's is flipped, found, and
//! copied again.

use super::*;
use mirrord_live_core::primary::Progress;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flip {
    No,
    /// Equal images are compared.
    Before,
    /// The block of this number has a flipped bit.
    Looking(u64),
    /// A resync leads to a higher generation than this one.
    Copying(u64),
}

impl World {
    /// True if there is nothing left to do. The ends are in sync.
    pub(super) fn flip_and_repair(&mut self) -> bool {
        let Machine::Primary(primary) = &self.nodes[self.primary].machine else {
            return true;
        };
        let verify = primary.verify.clone();
        let generation = primary.record().generation;
        // Strict mode refuses what follows; it is about to be changed.
        let is_sync = primary.record().mode == Mode::Sync;
        let is_over = is_sync && verify.progress != Progress::Running;
        match self.flip {
            Flip::No if is_over => {
                self.flip = Flip::Before;
                self.verify();
            }
            // The other end took over meanwhile.
            Flip::Before | Flip::Looking(_) if verify.progress == Progress::Never => self.verify(),
            Flip::Before if is_over => {
                if verify.differing_bytes > 0 || verify.checked != geometry().size {
                    self.fail(format!("P4: verify of equal images: {verify:?}"));
                }
                let byte = self.rng.below(geometry().size);
                let disk = &mut self.nodes[1 - self.primary].disk;
                let mut held = [0];
                let done = disk.read(File::Image, byte, &mut held);
                held[0] ^= 1 << (byte % 8);
                let done = done.and_then(|()| disk.write(File::Image, byte, &held));
                let done = done.and_then(|()| disk.sync(File::Image));
                assert!(done.is_ok(), "the simulated disk failed");
                self.note(|| format!("flipped a bit of byte {byte}"));
                self.flip = Flip::Looking(byte / u64::from(geometry().block));
                self.verify();
            }
            Flip::Looking(block) if is_over => {
                let wanted = geometry().range_of(block..block + 1);
                if verify.differing != [wanted] {
                    self.fail(format!("P4: verify overlooks a difference: {verify:?}"));
                }
                self.flip = Flip::Copying(generation);
                self.primary_event(self.primary, primary::Event::VerifyResync);
            }
            Flip::Copying(before) => return generation > before,
            _ => {}
        }
        false
    }
}
