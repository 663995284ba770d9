//! Grids of update intervals, run along a trace.

/// How a grid divides time.
#[derive(Clone)]
pub enum Cuts {
    /// Intervals of this many nanoseconds, from the first record on.
    Every(i64),
    /// Updates at these instants, ascending; `Clock::cut` can add more.
    At(Vec<i64>),
}

struct Grid {
    cuts: Cuts,
    /// The current interval: its number, and its end.
    interval: i64,
    end_ns: i64,
}

/// The position of each grid. An epoch is the time between two boundaries of any grid.
pub struct Clock {
    grids: Vec<Grid>,
    origin_ns: Option<i64>,
    /// The earliest end of a current interval.
    pub next_ns: i64,
    pub epoch: i32,
    /// The epoch in which each grid's interval began, and the intervals that were closed last.
    pub starts: Vec<i32>,
    pub closed: Vec<(usize, i64)>,
}

impl Clock {
    pub fn new(cuts: Vec<Cuts>) -> Self {
        let starts = vec![1; cuts.len()];
        let grids = cuts
            .into_iter()
            .map(|cuts| Grid {
                cuts,
                interval: 0,
                end_ns: i64::MAX,
            })
            .collect();
        // The first record sets the grids.
        Self {
            grids,
            origin_ns: None,
            next_ns: i64::MIN,
            epoch: 1,
            starts,
            closed: Vec::new(),
        }
    }

    /// The interval's number of each grid.
    pub fn interval(&self, grid: usize) -> i64 {
        self.grids[grid].interval
    }

    /// Advances to `time_ns`, at or after `next_ns`. `closed` lists the intervals that ended.
    /// None: there are too many epochs.
    pub fn advance(&mut self, time_ns: i64) -> Option<()> {
        self.closed.clear();
        let first = self.origin_ns.is_none();
        let origin_ns = *self.origin_ns.get_or_insert(time_ns);
        if !first {
            self.next_epoch()?;
        }
        for (index, grid) in self.grids.iter_mut().enumerate() {
            if grid.end_ns > time_ns && !first {
                continue;
            }
            let (interval, end_ns) = grid.cuts.at(origin_ns, time_ns);
            if !first {
                self.closed.push((index, grid.interval));
                self.starts[index] = self.epoch;
            }
            (grid.interval, grid.end_ns) = (interval, end_ns);
        }
        self.find_next();
        Some(())
    }

    /// Ends the current interval of a grid of instants at `at_ns`.
    pub fn cut(&mut self, index: usize, at_ns: i64) -> Option<()> {
        self.closed.clear();
        self.next_epoch()?;
        let grid = &mut self.grids[index];
        if let Cuts::At(instants) = &mut grid.cuts {
            instants.push(at_ns);
        }
        self.closed.push((index, grid.interval));
        grid.interval += 1;
        grid.end_ns = i64::MAX;
        self.starts[index] = self.epoch;
        if self.origin_ns.is_some() {
            self.find_next();
        }
        Some(())
    }

    fn next_epoch(&mut self) -> Option<()> {
        self.epoch = self.epoch.checked_add(1)?;
        Some(())
    }

    fn find_next(&mut self) {
        self.next_ns = self
            .grids
            .iter()
            .map(|grid| grid.end_ns)
            .min()
            .unwrap_or(i64::MAX);
    }
}

impl Cuts {
    /// The number of the interval in which `time_ns` is, and its end.
    fn at(&self, origin_ns: i64, time_ns: i64) -> (i64, i64) {
        match self {
            Cuts::Every(period_ns) => {
                let interval = (time_ns - origin_ns) / period_ns;
                (
                    interval,
                    origin_ns.saturating_add((interval + 1).saturating_mul(*period_ns)),
                )
            }
            Cuts::At(instants) => {
                let passed = instants.partition_point(|&at_ns| at_ns <= time_ns);
                (
                    passed as i64,
                    instants.get(passed).copied().unwrap_or(i64::MAX),
                )
            }
        }
    }
}
