//! Faults that tests seed, to see that a check notices them. Nothing sets one in production.

/// One way in which a mirror could be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    AckBeforePeer,
    AckBeforeLocal,
    PrimaryWinsAfterPowerCut,
    EarlyEviction,
    EvictionBeforeSync,
    ReadBeforeRecord,
    WriteBeforeTracking,
    FlushJoinsRunningSync,
    FlushNotForwarded,
    ResendOutOfOrder,
    FailedWriteUnmarked,
    BreakDuringCopy,
    BreakWithoutRollback,
    RollbackUnmarked,
    BeforeImageAfterOverwrite,
    StalledLinkUnseen,
    TrimDivergence,
    NoRangeLock,
    AckOutOfSyncBeforeRecord,
    EpochIgnored,
    VerifyWithoutLock,
    VerifySentAgain,
    VerifyBlind,
    BarrierIgnored,
    InPlaceApply,
    AckOutsideWindow,
    JournaledBeforeSync,
    LogReusedBeforeSync,
    RestartUnbounded,
    GrowthUnbounded,
    GrowthMissed,
    LostLogIgnored,
    ModeIgnored,
    InSyncClaimed,
    MergeAcrossBarrier,
    MergedUnitTorn,
    LossForgotten,
    LeaveBeforeSync,
    GreetingProlongs,
    RefusalKept,
    FetchUnwatched,
    LateFlushJoins,
    OldBeginAnswered,
    OlderCopyUnseen,
}

impl Fault {
    pub const ALL: [Fault; 44] = [
        Fault::AckBeforePeer,
        Fault::AckBeforeLocal,
        Fault::PrimaryWinsAfterPowerCut,
        Fault::EarlyEviction,
        Fault::EvictionBeforeSync,
        Fault::ReadBeforeRecord,
        Fault::WriteBeforeTracking,
        Fault::FlushJoinsRunningSync,
        Fault::FlushNotForwarded,
        Fault::ResendOutOfOrder,
        Fault::FailedWriteUnmarked,
        Fault::BreakDuringCopy,
        Fault::BreakWithoutRollback,
        Fault::RollbackUnmarked,
        Fault::BeforeImageAfterOverwrite,
        Fault::StalledLinkUnseen,
        Fault::TrimDivergence,
        Fault::NoRangeLock,
        Fault::AckOutOfSyncBeforeRecord,
        Fault::EpochIgnored,
        Fault::VerifyWithoutLock,
        Fault::VerifySentAgain,
        Fault::VerifyBlind,
        Fault::BarrierIgnored,
        Fault::InPlaceApply,
        Fault::AckOutsideWindow,
        Fault::JournaledBeforeSync,
        Fault::LogReusedBeforeSync,
        Fault::RestartUnbounded,
        Fault::GrowthUnbounded,
        Fault::GrowthMissed,
        Fault::LostLogIgnored,
        Fault::ModeIgnored,
        Fault::InSyncClaimed,
        Fault::MergeAcrossBarrier,
        Fault::MergedUnitTorn,
        Fault::LossForgotten,
        Fault::LeaveBeforeSync,
        Fault::GreetingProlongs,
        Fault::RefusalKept,
        Fault::FetchUnwatched,
        Fault::LateFlushJoins,
        Fault::OldBeginAnswered,
        Fault::OlderCopyUnseen,
    ];

    /// It shows in `semi-sync` only.
    pub fn is_of_semi(self) -> bool {
        matches!(
            self,
            Fault::BarrierIgnored
                | Fault::InPlaceApply
                | Fault::AckOutsideWindow
                | Fault::JournaledBeforeSync
                | Fault::LogReusedBeforeSync
                | Fault::RestartUnbounded
                | Fault::GrowthUnbounded
                | Fault::GrowthMissed
                | Fault::LostLogIgnored
                | Fault::ModeIgnored
                | Fault::MergeAcrossBarrier
                | Fault::MergedUnitTorn
                | Fault::LateFlushJoins
        )
    }

    pub fn named(name: &str) -> Option<Fault> {
        Fault::ALL
            .into_iter()
            .find(|fault| format!("{fault:?}") == name)
    }
}
