//! Functions that see gradients on their way.

use crate::Tensor;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

type Function = dyn Fn(&Tensor) -> Option<Tensor> + Send + Sync;

/// The hooks of one tensor, in the order in which they were registered.
#[derive(Default)]
pub(crate) struct Hooks {
    list: Mutex<Vec<(u64, Arc<Function>)>>,
}

impl Hooks {
    /// Adds a hook.
    pub(crate) fn add(
        self: &Arc<Hooks>,
        f: impl Fn(&Tensor) -> Option<Tensor> + Send + Sync + 'static,
    ) -> HookHandle {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        self.lock().push((id, Arc::new(f)));
        HookHandle {
            hooks: Arc::downgrade(self),
            id,
        }
    }

    /// The gradient after every hook has seen it.
    pub(crate) fn apply(&self, mut g: Tensor) -> Tensor {
        let hooks: Vec<Arc<Function>> = self.lock().iter().map(|(_, f)| f.clone()).collect();
        for hook in hooks {
            if let Some(new) = hook(&g) {
                g = new;
            }
        }
        g
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Arc<Function>)>> {
        self.list.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Removes a hook; see [`Tensor::register_hook`]. Dropping the handle leaves the hook in place.
pub struct HookHandle {
    hooks: Weak<Hooks>,
    id: u64,
}

impl HookHandle {
    /// Removes the hook. Removing it twice does nothing.
    pub fn remove(&self) {
        if let Some(hooks) = self.hooks.upgrade() {
            hooks.lock().retain(|(id, _)| *id != self.id);
        }
    }
}
