//! Packet delivery as an argument.

use clap::ValueEnum;

/// Who runs Apus' engine, and when it sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeliveryName {
    /// A background thread wakes for every packet, the application sleeps
    Base,
    /// The application polls and never sleeps
    Fullbusy,
    /// The application runs the engine while it finds messages and sleeps when there are none
    #[default]
    Suspend,
}

impl DeliveryName {
    /// The name in arguments and results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Fullbusy => "fullbusy",
            Self::Suspend => "suspend",
        }
    }
}
