//! Settings under the names that PyTorch has for them.

pub mod cudnn {
    //! Choosing algorithms by measuring them, as `torch.backends.cudnn` does for its convolutions; here it is
    //! products and custom ops too, on every device. See [`tuning`](crate::tuning).
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

    /// Whether algorithms are measured.
    pub fn benchmark() -> bool {
        matches!(mode(), Mode::On | Mode::Deterministic)
    }

    /// Sets whether algorithms are measured.
    pub fn set_benchmark(on: bool) {
        set_mode(match (on, DETERMINISTIC.load(Ordering::Relaxed)) {
            (false, _) => Mode::Off,
            (true, false) => Mode::On,
            (true, true) => Mode::Deterministic,
        });
    }

    /// Whether what is measured may not change results: those of [`Mode::Off`] and
    /// [`Mode::Deterministic`] depend on the program and the device alone.
    pub fn deterministic() -> bool {
        DETERMINISTIC.load(Ordering::Relaxed)
    }

    /// Sets whether what is measured may not change results.
    pub fn set_deterministic(on: bool) {
        DETERMINISTIC.store(on, Ordering::Relaxed);
        if benchmark() {
            set_benchmark(true);
        }
    }
}
