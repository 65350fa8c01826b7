//! Tile programs whose symbols have values.

use super::affine::{Affine, Limit};
use kiln_base::Scalar;
use kiln_plan::tile::{Schedule, TileProgram};

/// An access whose symbols have values. Its strides are those of the `outer` and then the `lane` axes of [`Bound`].
#[derive(Clone, Debug, PartialEq)]
pub struct BoundAccess {
    /// `None` for the value of an `Index` instruction.
    pub arg: Option<usize>,
    pub address: Affine,
    pub limits: Vec<Limit>,
    pub fill: Scalar,
}

/// A data-dependent part of an address.
#[derive(Copy, Clone, Debug)]
pub struct BoundDynamic {
    /// The register of the index.
    pub index: u32,
    pub stride: i64,
    pub extent: i64,
    pub site: u32,
}

/// A checked program whose symbols have values.
///
/// Axes are ordered outer first: stepped axes, then tiled axes. Axes of extent 1 are dropped.
#[derive(Debug)]
pub struct Bound<'a> {
    pub program: &'a TileProgram,
    /// The extents of the stepped axes.
    pub outer: Vec<i64>,
    /// The extents of the tiled axes.
    pub lane: Vec<i64>,
    /// The program's accesses, then one for each `Index` instruction in program order.
    pub accesses: Vec<BoundAccess>,
    /// The dynamic parts of each `LoadAt`, in program order.
    pub dynamics: Vec<Vec<BoundDynamic>>,
    /// The lengths of the arguments that the proofs assumed.
    pub lens: Vec<i64>,
    /// True if parts may run concurrently: every store goes to a different element.
    pub parallel: bool,
    /// The number of consecutive points of the parallel axes that one thread runs in order.
    pub serial: i64,
    /// True for each argument that is written completely, without being read before.
    pub covered: Vec<bool>,
}

impl Bound<'_> {
    /// Returns the bytes of each argument.
    pub fn sizes(&self) -> impl Iterator<Item = usize> {
        let args = self.program.args.iter().zip(&self.lens);
        args.map(|(arg, len)| (*len as usize).saturating_mul(arg.dtype.size()))
    }

    /// Returns the number of points of the inner axes.
    pub fn inner_len(&self) -> i64 {
        match self.program.schedule {
            Schedule::Lanes => self.outer.iter().product(),
            Schedule::Rows => self.lane.iter().product(),
        }
    }

    /// Returns the number of points of the parallel axes.
    pub fn axes_len(&self) -> i64 {
        match self.program.schedule {
            Schedule::Lanes => self.lane.iter().product(),
            Schedule::Rows => self.outer.iter().product(),
        }
    }
}
