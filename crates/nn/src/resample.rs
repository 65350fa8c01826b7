//! Layers that change the size of images.

use crate::layer::{fact, run, wrong};
use crate::pool::given;
use crate::print::{float, python, sizes};
use crate::{Forward, Module};
use kiln_tensor::{Im2Col, Int, IntList, InterpolateMode, InterpolateSize, PadMode, Tensor};

/// `[n, c, ..]` with its spatial dims resized (`torch.nn.Upsample`); nearest neighbours by default.
///
/// ```
/// use kiln_nn::{Forward, Upsample};
/// use kiln_tensor::{InterpolateMode, Tensor};
/// let x = Tensor::from([[[1f32, 2.0]]]);
/// assert_eq!(Upsample::scale(2.0).forward(&x).to_vec::<f32>()?, [1.0, 1.0, 2.0, 2.0]);
/// let linear = Upsample::size(3).mode(InterpolateMode::Linear { align_corners: true });
/// assert_eq!(linear.forward(&x).to_vec::<f32>()?, [1.0, 1.5, 2.0]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
#[module(extra_repr)]
pub struct Upsample {
    #[skip]
    size: InterpolateSize,
    #[skip]
    mode: InterpolateMode,
}

impl Upsample {
    /// A layer that multiplies each spatial dim.
    pub fn scale(factor: f64) -> Upsample {
        Upsample {
            size: InterpolateSize::ScaleFactor(vec![factor]),
            mode: InterpolateMode::Nearest,
        }
    }

    /// A layer that gives this size: one number for each spatial dim, or one for all.
    pub fn size(size: impl Into<IntList>) -> Upsample {
        Upsample {
            size: InterpolateSize::Size(size.into()),
            mode: InterpolateMode::Nearest,
        }
    }

    /// The layer with this way to make new elements.
    pub fn mode(mut self, mode: InterpolateMode) -> Upsample {
        self.mode = mode;
        self
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
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        run(self, &[x], || x.interpolate(self.size.clone(), self.mode))
    }
}

macro_rules! shuffles {
    ($($(#[$doc:meta])* $name:ident $op:ident $(#[$about:meta])* $field:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Module)]
        #[module(extra_repr)]
        pub struct $name {
            $(#[$about])*
            pub $field: i64,
        }

        impl $name {
            /// The layer with this number.
            pub fn new($field: impl Into<Int>) -> $name {
                $name { $field: $field.into().0 }
            }

            fn extra_repr(&self) -> String {
                format!("{}={}", stringify!($field), self.$field)
            }
        }

        impl Forward for $name {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                run(self, &[x], || x.$op(self.$field))
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
    output_size: IntList,
    /// The windows.
    #[skip]
    pub windows: Im2Col,
}

impl Fold {
    /// A layer that gives images of this size, from these windows of them; their size alone stands for them.
    pub fn new(output_size: impl Into<IntList>, windows: impl Into<Im2Col>) -> Fold {
        Fold {
            output_size: output_size.into(),
            windows: windows.into(),
        }
    }

    fn extra_repr(&self) -> String {
        format!(
            "output_size={}, kernel_size={}, dilation={}, padding={}, stride={}",
            given(&self.output_size),
            given(&self.windows.kernel_size),
            given(&self.windows.dilation),
            given(&self.windows.padding),
            given(&self.windows.stride)
        )
    }

    fn folded(&self, x: &Tensor) -> Tensor {
        let [h, w] = match self.output_size.0[..] {
            [a] => [a, a],
            [a, b] => [a, b],
            _ => {
                return wrong(
                    self,
                    format!("output_size can't be {:?}", self.output_size.0),
                );
            }
        };
        // Where each element of the columns goes, counted from 1; the border is at 0.
        let places = Tensor::arange(1, h * w + 1, 1).reshape([1, h, w]);
        let places = places.im2col(self.windows.clone());
        if places.error().is_some() {
            return places;
        }
        let fits = |x: &Tensor| {
            let (rank, columns) = (x.ndim(), places.dims());
            let channels = |taps: i64| x.dims()[rank - 2].as_const().is_some_and(|c| c % taps == 0);
            x.dims()[rank - 1] == columns[1] && columns[0].as_const().is_some_and(channels)
        };
        if !(2..=3).contains(&x.ndim()) || !fits(x) {
            let message = format!("takes [n, c · {}, {}]", places.dims()[0], places.dims()[1]);
            return wrong(self, format!("{message}, not {}", fact(x)));
        }
        let taps = places.dims()[0].as_const().unwrap_or(1);
        let elements = x.unflatten(-2, [-1, taps]).flatten(-2, -1);
        let places = places.flatten(0, 1).expand_as(&elements);
        let image = elements.narrow(-1, 0, 1).zeros_like();
        let image = image.pad([0, h * w], PadMode::ZEROS);
        let image = image.scatter_add(-1, &places, &elements);
        image.narrow(-1, 1, h * w).unflatten(-1, [h, w])
    }
}

impl Forward for Fold {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        run(self, &[x], || self.folded(x))
    }
}
