//! Convolution.

use super::prelude::*;

/// Cross-correlation of x `[n, groups · c, spatial..]` with a weight `[groups · o, c, kernel..]` to
/// `[n, groups · o, out..]`, zero-padded. The per-axis lists have one entry for each spatial axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Conv {
    /// The stride along each spatial axis, at least 1.
    pub stride: Axes,
    /// The number of zeros before and after each spatial axis.
    pub padding: Vec<(usize, usize)>,
    /// The distance between taps of the kernel along each spatial axis, at least 1.
    pub dilation: Axes,
    /// The number of channel groups, at least 1.
    pub groups: usize,
}

impl OpDef for Conv {
    const NAME: &'static str = "conv";
    const ARITY: RangeInclusive<usize> = 2..=2;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let (x, w) = (inputs[0], inputs[1]);
        check_computes(x.dtype)?;
        ensure!(
            x.dtype == w.dtype,
            "the input is {} but the weight is {}",
            x.dtype,
            w.dtype
        );
        ensure!(x.dtype != DType::Bool, "bool tensors can't be convolved");
        let spatial = self.stride.len();
        ensure!(
            self.padding.len() == spatial && self.dilation.len() == spatial,
            "stride, padding and dilation must have one entry for each spatial axis"
        );
        ensure!(
            x.rank() == spatial + 2 && w.rank() == spatial + 2,
            "{spatial} spatial axes need an input and a weight of rank {}, not {x} and {w}",
            spatial + 2
        );
        ensure!(self.groups > 0, "groups must be at least 1");
        let groups = Dim::from(self.groups);
        ensure!(
            x.shape[1] == &w.shape[1] * &groups,
            "the input {x} has {} channels, but the weight {w} with {groups} groups takes {}",
            x.shape[1],
            &w.shape[1] * &groups
        );
        ensure!(
            w.shape[0].div_exact(&groups).is_ok(),
            "{} output channels do not divide into {groups} groups",
            w.shape[0]
        );
        let mut shape: Shape = [x.shape[0].clone(), w.shape[0].clone()]
            .into_iter()
            .collect();
        for a in 0..spatial {
            shape.push(window_extent(
                &x.shape[a + 2],
                &w.shape[a + 2],
                self.stride[a],
                self.padding[a],
                self.dilation[a],
            )?);
        }
        one_output(x.dtype, shape)
    }

    fn needs(&self, inputs: &[&Fact]) -> Vec<Dim> {
        let (x, w) = (inputs[0], inputs[1]);
        let room = |a: usize| {
            let (extent, kernel) = (&x.shape[a + 2], &w.shape[a + 2]);
            window_room(extent, kernel, self.padding[a], self.dilation[a]).ok()
        };
        (0..self.stride.len()).filter_map(room).collect()
    }
}

/// The output extent of a sliding window: `(extent + padding − dilation · (kernel − 1) − 1) / stride + 1`, rounded
/// down.
///
/// # Errors
/// If the window is known to be larger than the padded axis.
pub fn window_extent(
    extent: &Dim,
    kernel: &Dim,
    stride: usize,
    padding: (usize, usize),
    dilation: usize,
) -> Result<Dim, OpError> {
    ensure!(stride > 0, "a stride must be at least 1");
    ensure!(
        stride <= i32::MAX as usize,
        "a stride of {stride} is too large: at most {} is supported",
        i32::MAX
    );
    let room = window_room(extent, kernel, padding, dilation)?;
    Ok(&room.div_floor(stride as i64) + &Dim::ONE)
}

/// The extent of a padded axis minus that of a dilated window: the last offset at which the window fits.
///
/// # Errors
/// If the window is known to be larger than the axis, or a size exceeds the range of an i32.
pub(super) fn window_room(
    extent: &Dim,
    kernel: &Dim,
    padding: (usize, usize),
    dilation: usize,
) -> Result<Dim, OpError> {
    ensure!(dilation > 0, "a dilation must be at least 1");
    // Engines and other libraries hold dilations in an i32.
    ensure!(
        dilation <= i32::MAX as usize,
        "a dilation of {dilation} is too large: at most {} is supported",
        i32::MAX
    );
    let k = kernel.as_const().ok_or_else(|| {
        OpError(format!(
            "a kernel of unknown size {kernel} is not supported"
        ))
    })?;
    ensure!(
        k > 0,
        "a kernel must have at least 1 element along each axis, not {k}"
    );
    let too_large = || OpError("the window is too large".into());
    let span = i64::try_from(dilation)
        .ok()
        .and_then(|d| d.checked_mul(k - 1)?.checked_add(1))
        .ok_or_else(too_large)?;
    let padded = padding
        .0
        .checked_add(padding.1)
        .filter(|p| *p <= i32::MAX as usize);
    let padded = Dim::from(padded.ok_or_else(too_large)?);
    let room = &(extent + &padded) - &Dim::Const(span);
    ensure!(
        room.as_const().is_none_or(|room| room >= 0),
        "a kernel that spans {span} does not fit into {extent} plus padding {padding:?}"
    );
    Ok(room)
}
