//! Layers that change the size of images.

use crate::layer::{fact, input_error, invalid};
use crate::pool::format_size;
use crate::print::{float, python, sizes};
use crate::{Forward, Hooks, Module};
use kiln_tensor::{
    Device, Im2Col, Int, IntList, InterpolateMode, InterpolateSize, PadMode, Result, Tensor,
    set_device,
};

/// `[n, c, ..]` with its spatial dims resized (`torch.nn.Upsample`); nearest neighbours by default.
///
/// ```
/// use kiln_nn::{Forward, Upsample};
/// use kiln_tensor::{InterpolateMode, InterpolateSize, Tensor};
/// let x = Tensor::from([[[1f32, 2.0]]]);
/// assert_eq!(Upsample::scale(2.0)?.call(&x).to_vec::<f32>()?, [1.0, 1.0, 2.0, 2.0]);
/// let linear = Upsample::with(InterpolateSize::Size(3.into()), InterpolateMode::Linear { align_corners: true })?;
/// assert_eq!(linear.call(&x).to_vec::<f32>()?, [1.0, 1.5, 2.0]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
#[module(extra_repr)]
pub struct Upsample {
    #[skip]
    size: InterpolateSize,
    #[skip]
    mode: InterpolateMode,
    hooks: Hooks,
}

impl Upsample {
    /// Makes a layer that multiplies each spatial dim.
    ///
    /// # Errors
    /// If the factor is not positive.
    #[track_caller]
    pub fn scale(factor: f64) -> Result<Upsample> {
        Upsample::with(
            InterpolateSize::ScaleFactor(vec![factor]),
            InterpolateMode::Nearest,
        )
    }

    /// Makes a layer with this output size: one number for each spatial dim, or one for all.
    ///
    /// # Errors
    /// If a size is not positive.
    #[track_caller]
    pub fn new(size: impl Into<IntList>) -> Result<Upsample> {
        Upsample::with(InterpolateSize::Size(size.into()), InterpolateMode::Nearest)
    }

    /// Makes a layer with this size or factor, and this interpolation.
    ///
    /// # Errors
    /// If a size or a factor is not positive.
    #[track_caller]
    pub fn with(size: InterpolateSize, mode: InterpolateMode) -> Result<Upsample> {
        let (fits, count) = match &size {
            InterpolateSize::Size(s) => (s.0.iter().all(|n| *n > 0), format!("{:?}", s.0)),
            InterpolateSize::ScaleFactor(f) => (f.iter().all(|f| *f > 0.0), format!("{f:?}")),
        };
        if !fits {
            let message = format!("sizes and factors must be positive, not {count}");
            return Err(invalid("Upsample", message));
        }
        let hooks = Hooks::new();
        Ok(Upsample { size, mode, hooks })
    }

    /// Returns the size of the result, or the factors of the input's size.
    pub fn size(&self) -> &InterpolateSize {
        &self.size
    }

    /// Returns the interpolation.
    pub fn mode(&self) -> InterpolateMode {
        self.mode
    }

    fn extra_repr(&self) -> String {
        let size = match &self.size {
            InterpolateSize::Size(size) => format!("size={}", sizes(&size.0, size.0.len())),
            InterpolateSize::ScaleFactor(factors) => {
                let factors: Vec<String> = factors.iter().map(|f| float(*f)).collect();
                format!("scale_factor={}", factors.join(", "))
            }
        };
        let corners = |name: &str, align: bool| match align {
            true => format!("'{name}', align_corners={}", python(true)),
            false => format!("'{name}'"),
        };
        let mode = match self.mode {
            InterpolateMode::Nearest => "'nearest'".into(),
            InterpolateMode::NearestExact => "'nearest-exact'".into(),
            InterpolateMode::Linear { align_corners } => corners("linear", align_corners),
            InterpolateMode::Bicubic { align_corners } => corners("bicubic", align_corners),
            InterpolateMode::Area => "'area'".into(),
        };
        format!("{size}, mode={mode}")
    }
}

impl Forward for Upsample {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(x.interpolate(self.size.clone(), self.mode))
    }
}

macro_rules! shuffles {
    ($($(#[$doc:meta])* $name:ident $op:ident $(#[$about:meta])* $field:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[module(extra_repr)]
        pub struct $name {
            $field: i64,
            hooks: Hooks,
        }

        impl $name {
            /// Makes the layer with this number.
            ///
            /// # Errors
            /// If it is less than 1.
            #[track_caller]
            pub fn new($field: impl Into<Int>) -> Result<$name> {
                let ($field, hooks) = ($field.into().0, Hooks::new());
                if $field < 1 {
                    let message = format!("{} must be at least 1, not {}", stringify!($field), $field);
                    return Err(invalid(stringify!($name), message));
                }
                Ok($name { $field, hooks })
            }

            $(#[$about])*
            pub fn $field(&self) -> i64 {
                self.$field
            }

            fn extra_repr(&self) -> String {
                format!("{}={}", stringify!($field), self.$field)
            }
        }

        impl Forward for $name {
            fn forward(&self, x: Tensor) -> Result<Tensor> {
                Ok(x.$op(self.$field))
            }
        }
    )*};
}

shuffles! {
    /// `[.., c · r², h, w]` to `[.., c, h · r, w · r]` (`torch.nn.PixelShuffle`).
    PixelShuffle pixel_shuffle
    /// r.
    upscale_factor;
    /// `[.., c, h · r, w · r]` to `[.., c · r², h, w]` (`torch.nn.PixelUnshuffle`).
    PixelUnshuffle pixel_unshuffle
    /// r.
    downscale_factor;
    /// The channels of `[n, c, ..]` with their groups interleaved (`torch.nn.ChannelShuffle`).
    ChannelShuffle channel_shuffle
    /// The number of groups.
    groups;
}

/// Images from columns of windows, overlapping elements added: `[n, c · kh · kw, windows]` to
/// `[n, c, h, w]`, also without the batch (`torch.nn.Fold`); the transpose of [`Unfold`](crate::Unfold).
#[derive(Clone, Debug, Module)]
#[module(extra_repr)]
pub struct Fold {
    #[skip]
    output_size: [i64; 2],
    #[skip]
    windows: Im2Col,
    hooks: Hooks,
}

impl Fold {
    /// Makes a layer that returns images of this size from these windows of them; a window size converts to windows.
    ///
    /// # Errors
    /// If there are not one or two sizes, or the windows don't fit into them.
    #[track_caller]
    pub fn new(output_size: impl Into<IntList>, windows: impl Into<Im2Col>) -> Result<Fold> {
        let output_size = match output_size.into().0[..] {
            [a] => [a, a],
            [a, b] => [a, b],
            ref sizes => {
                return Err(invalid("Fold", format!("output_size can't be {sizes:?}")));
            }
        };
        let (windows, hooks) = (windows.into(), Hooks::new());
        let fold = Fold {
            output_size,
            windows,
            hooks,
        };
        match fold.element_positions(Device::Cpu).error() {
            Some(e) => Err(invalid("Fold", e.message())),
            None => Ok(fold),
        }
    }

    /// The size of the images.
    pub fn output_size(&self) -> [i64; 2] {
        self.output_size
    }

    /// The windows.
    pub fn windows(&self) -> &Im2Col {
        &self.windows
    }

    fn extra_repr(&self) -> String {
        format!(
            "output_size={}, kernel_size={}, dilation={}, padding={}, stride={}",
            sizes(&self.output_size, 2),
            format_size(&self.windows.kernel_size),
            format_size(&self.windows.dilation),
            format_size(&self.windows.padding),
            format_size(&self.windows.stride)
        )
    }

    /// Returns the position in the image of each element of the columns, counted from 1; padding is at 0.
    fn element_positions(&self, device: Device) -> Tensor {
        let [h, w] = self.output_size;
        let _here = set_device(device);
        let count = h.saturating_mul(w).saturating_add(1);
        let positions = Tensor::arange(1, count, 1).reshape([1, h, w]);
        positions.im2col(self.windows.clone())
    }
}

impl Forward for Fold {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let [h, w] = self.output_size;
        let positions = self.element_positions(x.device());
        let fits = |x: &Tensor| {
            let (rank, columns) = (x.ndim(), positions.dims());
            let channels = |taps: i64| x.dims()[rank - 2].as_const().is_some_and(|c| c % taps == 0);
            x.dims()[rank - 1] == columns[1] && columns[0].as_const().is_some_and(channels)
        };
        if !(2..=3).contains(&x.ndim()) || !fits(&x) {
            let message = format!(
                "takes [n, c · {}, {}]",
                positions.dims()[0],
                positions.dims()[1]
            );
            return input_error(self, format!("{message}, not {}", fact(&x)));
        }
        let taps = positions.dims()[0].as_const().unwrap_or(1);
        let elements = x.unflatten(-2, [-1, taps]).flatten(-2);
        let positions = positions.flatten((0, 1)).expand_as(&elements);
        let image = elements.narrow(-1, 0, 1).zeros_like();
        let image = image.pad([0, h * w], PadMode::ZEROS);
        let image = image.scatter_add(-1, &positions, &elements);
        Ok(image.narrow(-1, 1, h * w).unflatten(-1, [h, w]))
    }
}
