//! Progress that is not shown.

use std::time::Duration;

#[derive(Clone)]
pub(super) struct Bar;

impl Bar {
    pub(super) fn new(_: String, _: Option<u64>, _: bool) -> Bar {
        Bar
    }
    pub(super) fn is_hidden(&self) -> bool {
        true
    }
    pub(super) fn inc(&self, _: u64) {}
    pub(super) fn set(&self, _: u64, _: u64) {}
    pub(super) fn set_description(&self, _: String) {}
    pub(super) fn set_message(&self, _: String) {}
    pub(super) fn live(&self, _: impl Fn() -> String) {}
    pub(super) fn tick_every(&self, _: Duration) {}
    pub(super) fn suspend<R>(&self, f: impl FnOnce() -> R) -> R {
        f()
    }
    pub(super) fn finish(&self, _: bool) {}
}
