//! The interface between groups and transports.

use kiln_base::collective::Communicator;
use std::sync::Arc;
use std::time::Duration;

/// The timeout of operations unless another one is given, as PyTorch's.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// The longest timeout, which clocks can add to the present.
pub(crate) const MAX_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The means by which ranks communicate.
pub(crate) trait Transport: Send + Sync {
    /// Returns a group of these ranks of the world, of which this is one. `number` counts the groups made before.
    ///
    /// # Errors
    /// If a rank does not come.
    fn subgroup(&self, ranks: &[usize], number: usize) -> Result<Arc<dyn Communicator>, String>;

    /// Ends communication.
    ///
    /// # Errors
    /// If it fails.
    fn close(&self) -> Result<(), String> {
        Ok(())
    }

    /// True if the rank is a process, false if it is a thread.
    fn is_process(&self) -> bool {
        false
    }
}

/// A rank's group, and its way to make others.
pub(crate) type Joined = (Arc<dyn Communicator>, Arc<dyn Transport>);
