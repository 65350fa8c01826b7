//! Settings under PyTorch's names.

pub mod cudnn {
    //! Choosing algorithms by measuring them, as `torch.backends.cudnn` does for its convolutions. Here it also
    //! covers products and custom ops, on every device. See [`tuning`](crate::tuning).
    //!
    //! ```
    //! use kiln_tensor::backends::cudnn;
    //! use kiln_tensor::tuning::{self, Mode};
    //!
    //! cudnn::set_benchmark(true); // torch.backends.cudnn.benchmark = True
    //! assert_eq!(tuning::mode(), Mode::On);
    //! cudnn::set_deterministic(true); // torch.backends.cudnn.deterministic = True
    //! assert_eq!(tuning::mode(), Mode::Deterministic);
    //! cudnn::set_benchmark(false);
    //! assert_eq!(tuning::mode(), Mode::Off);
    //! # cudnn::set_deterministic(false);
    //! ```

    use crate::tuning::{Mode, mode, set_mode};
    use std::sync::atomic::{AtomicBool, Ordering};

    static DETERMINISTIC: AtomicBool = AtomicBool::new(false);

    /// True if algorithms are chosen by measuring them.
    pub fn benchmark() -> bool {
        matches!(mode(), Mode::On | Mode::Deterministic)
    }

    /// Sets whether algorithms are chosen by measuring them.
    pub fn set_benchmark(on: bool) {
        set_mode(match (on, DETERMINISTIC.load(Ordering::Relaxed)) {
            (false, _) => Mode::Off,
            (true, false) => Mode::On,
            (true, true) => Mode::Deterministic,
        });
    }

    /// True if measurements must not change results: those of [`Mode::Off`] and [`Mode::Deterministic`] depend on the
    /// program and the device alone.
    pub fn deterministic() -> bool {
        DETERMINISTIC.load(Ordering::Relaxed)
    }

    /// Sets whether measurements must not change results.
    pub fn set_deterministic(on: bool) {
        DETERMINISTIC.store(on, Ordering::Relaxed);
        if benchmark() {
            set_benchmark(true);
        }
    }
}
