//! Functions that are called with gradients.

use kiln_runtime::lock::lock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

type Function<T> = dyn Fn(&T) -> Option<T> + Send + Sync;

/// The hooks of one tensor, in the order in which they were registered.
pub struct Hooks<T> {
    list: Mutex<Vec<(u64, Arc<Function<T>>)>>,
}

impl<T> Default for Hooks<T> {
    fn default() -> Hooks<T> {
        Hooks {
            list: Mutex::default(),
        }
    }
}

impl<T: 'static> Hooks<T> {
    /// Adds a hook.
    pub fn add(
        self: &Arc<Self>,
        f: impl Fn(&T) -> Option<T> + Send + Sync + 'static,
    ) -> HookHandle {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        lock(&self.list).push((id, Arc::new(f)));
        let hooks: Weak<Hooks<T>> = Arc::downgrade(self);
        HookHandle::new(move || {
            if let Some(hooks) = hooks.upgrade() {
                lock(&hooks.list).retain(|(other, _)| *other != id);
            }
        })
    }

    /// Passes a gradient through every hook.
    pub fn apply(&self, mut g: T) -> T {
        let hooks: Vec<Arc<Function<T>>> =
            lock(&self.list).iter().map(|(_, f)| f.clone()).collect();
        for hook in hooks {
            if let Some(new) = hook(&g) {
                g = new;
            }
        }
        g
    }
}

/// Removes a hook; see `Tensor::register_hook`. Dropping the handle does not remove the hook.
pub struct HookHandle(Box<dyn Fn() + Send + Sync>);

impl HookHandle {
    /// The handle of a hook that `remove` removes, for types with hooks of their own, such as modules.
    pub fn new(remove: impl Fn() + Send + Sync + 'static) -> HookHandle {
        HookHandle(Box::new(remove))
    }

    /// Removes the hook. Removing it twice does nothing.
    pub fn remove(&self) {
        (self.0)();
    }
}

/// Hooks that are removed when this is dropped.
#[doc(hidden)]
#[derive(Default)]
pub struct HookHandles(pub Vec<HookHandle>);

impl Drop for HookHandles {
    fn drop(&mut self) {
        self.0.iter().for_each(HookHandle::remove);
    }
}

impl std::fmt::Debug for HookHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HookHandle")
    }
}
