//! Argument types of transforms.

use crate::fault::invalid;
use kiln_tensor::Result;
use std::fmt;

/// A number of things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub usize);

from! { Count: |n: usize| Count(n); }

/// The size of a resized image: `(height, width)`, or a number for its shorter side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// The length of the shorter side; the other one keeps the image's proportions.
    Shorter(usize),
    /// Height and width.
    Both(usize, usize),
}

from! { Size:
    |shorter: usize| Size::Shorter(shorter);
    |(height, width): (usize, usize)| Size::Both(height, width);
    |[height, width]: [usize; 2]| Size::Both(height, width);
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Size::Shorter(n) => write!(f, "{n}"),
            Size::Both(height, width) => write!(f, "({height}, {width})"),
        }
    }
}

/// The size of a crop: `(height, width)`, or a number for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The number of rows.
    pub height: usize,
    /// The number of columns.
    pub width: usize,
}

from! { Extent:
    |side: usize| Extent::from((side, side));
    |(height, width): (usize, usize)| Extent { height, width };
    |[height, width]: [usize; 2]| Extent { height, width };
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "({}, {})", self.height, self.width)
    }
}

/// The size of a blur's kernel: `(x, y)`, in torchvision's order, or a number for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSize {
    /// Columns.
    pub x: usize,
    /// Rows.
    pub y: usize,
}

from! { KernelSize:
    |side: usize| KernelSize { x: side, y: side };
    |(x, y): (usize, usize)| KernelSize { x, y };
}

impl fmt::Display for KernelSize {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "({}, {})", self.x, self.y)
    }
}

/// The widths of the padding: one for all sides, `[left and right, top and bottom]`, or `[left, top, right, bottom]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Padding {
    /// Columns on the left.
    pub left: usize,
    /// Rows above.
    pub top: usize,
    /// Columns on the right.
    pub right: usize,
    /// Rows below.
    pub bottom: usize,
}

from! { Padding:
    |all: usize| Padding::from([all; 4]);
    |[columns, rows]: [usize; 2]| Padding::from([columns, rows, columns, rows]);
    |[left, top, right, bottom]: [usize; 4]| Padding { left, top, right, bottom };
}

impl fmt::Display for Padding {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Padding {
            left,
            top,
            right,
            bottom,
        } = self;
        match (left == right, top == bottom) {
            (true, true) if left == top => write!(f, "{left}"),
            (true, true) => write!(f, "({left}, {top})"),
            _ => write!(f, "({left}, {top}, {right}, {bottom})"),
        }
    }
}

/// The values of padding: torchvision's `padding_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PaddingMode {
    /// A colour.
    #[default]
    Constant,
    /// The pixel at the edge.
    Edge,
    /// The image, mirrored at its outermost pixels, which are not repeated.
    Reflect,
    /// The image, mirrored at its edge, outermost pixels repeated.
    Symmetric,
}

impl fmt::Display for PaddingMode {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            PaddingMode::Constant => "constant",
            PaddingMode::Edge => "edge",
            PaddingMode::Reflect => "reflect",
            PaddingMode::Symmetric => "symmetric",
        })
    }
}

/// A colour: a number for all channels, or one for each. Of images they are levels, 0 to 255.
#[derive(Clone, Debug, PartialEq)]
pub struct Fill(Vec<f64>);

impl Fill {
    /// One number per channel.
    #[track_caller]
    pub(crate) fn numbers(&self, op: &str, channels: usize) -> Result<Vec<f64>> {
        match self.0.len() {
            1 => Ok(vec![self.0[0]; channels]),
            n if n == channels => Ok(self.0.clone()),
            n => {
                let message = format!(
                    "the fill {self} has {n} numbers, but the image has {channels} channels"
                );
                Err(invalid(op, message))
            }
        }
    }

    /// One level per channel.
    #[track_caller]
    pub(crate) fn levels(&self, op: &str, channels: usize) -> Result<Vec<u8>> {
        let level = |v: &f64| (0.0..256.0).contains(v).then_some(*v as u8);
        let levels: Option<Vec<u8>> = self.numbers(op, channels)?.iter().map(level).collect();
        levels.ok_or_else(|| {
            let message = format!("the fill {self} is not a colour: levels are in 0..=255");
            invalid(op, message)
        })
    }
}

from! { Fill:
    |level: u8| Fill(vec![level.into()]);
    |number: f64| Fill(vec![number]);
    |numbers: Vec<f64>| Fill(numbers);
}

impl<const N: usize> From<[u8; N]> for Fill {
    fn from(levels: [u8; N]) -> Fill {
        Fill(levels.map(f64::from).to_vec())
    }
}

impl<const N: usize> From<[f64; N]> for Fill {
    fn from(numbers: [f64; N]) -> Fill {
        Fill(numbers.to_vec())
    }
}

impl fmt::Display for Fill {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(f64::to_string).collect();
        match &numbers[..] {
            [number] => f.write_str(number),
            _ => write!(f, "({})", numbers.join(", ")),
        }
    }
}

/// The range that a random number is drawn from: `d` for a distance to both sides of the neutral value, or `(least,
/// most)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spread {
    /// A distance to both sides.
    Around(f64),
    /// From the first number to the second.
    Between(f64, f64),
}

impl Spread {
    /// The range around `centre`, which must lie in `bounds`. A range around 1 is cut off at 0.
    #[track_caller]
    pub(crate) fn range(
        self,
        (op, name): (&str, &str),
        centre: f64,
        bounds: (f64, f64),
    ) -> Result<(f64, f64)> {
        let (low, high) = match self {
            Spread::Around(d) if d.is_nan() || d < 0.0 => {
                let message = format!("{name}, as a single number, is not negative, but it is {d}");
                return Err(invalid(op, message));
            }
            Spread::Around(d) if centre > 0.0 => ((centre - d).max(0.0), centre + d),
            Spread::Around(d) => (centre - d, centre + d),
            Spread::Between(low, high) => (low, high),
        };
        // True also if one is NaN.
        if !(bounds.0 <= low && low <= high && high <= bounds.1 && high.is_finite()) {
            let message = format!(
                "{name} is from {low:?} to {high:?}, but must ascend within {:?} to {:?}",
                bounds.0, bounds.1
            );
            return Err(invalid(op, message));
        }
        Ok((low, high))
    }
}

from! { Spread:
    |d: f64| Spread::Around(d);
    |(low, high): (f64, f64)| Spread::Between(low, high);
    |[low, high]: [f64; 2]| Spread::Between(low, high);
}

/// The text of a transform: its name, and its arguments in parentheses.
macro_rules! printed {
    ($name:ident, $t:ident: $format:literal $(, $arg:expr)* $(,)?) => {
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                let $t = self;
                write!(f, concat!(stringify!($name), "(", $format, ")") $(, $arg)*)
            }
        }
    };
}
pub(super) use printed;

/// Checks that a probability is in [0, 1], and returns it.
#[track_caller]
pub(crate) fn probability(op: &str, p: f64) -> Result<f64> {
    match (0.0..=1.0).contains(&p) {
        true => Ok(p),
        false => Err(invalid(
            op,
            format!("p is a probability in [0, 1], not {p}"),
        )),
    }
}

/// `True` or `False`, as Python prints it.
pub(crate) fn truth(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// The value as text, or Python's `None`.
pub(crate) fn optional(value: &Option<impl fmt::Display>) -> String {
    value.as_ref().map_or("None".into(), |v| v.to_string())
}
