//! The limits of dividing work on a machine, which an engine sets before there are kernels: how much is divided, and
//! how much a part keeps to itself.

/// The limits by which nodes are grouped into kernels.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Limits {
    /// The reductions that run in two steps.
    pub two_steps: TwoSteps,
    /// The longest row that a reduction does not divide.
    pub longest_row: i64,
    /// The minimum number of rows that run in parallel, unless there are at most `few_points`.
    pub fewest_rows: i64,
    /// The maximum number of points of a space that runs in one piece.
    pub few_points: i64,
    /// The maximum number of columns for which a reduction over rows and columns keeps accumulators.
    pub most_columns: i64,
    /// The products that hold rows.
    pub held_rows: HeldRows,
}

/// The reductions that run in two steps, for threads to share the work.
#[derive(Copy, Clone, Debug)]
pub(crate) struct TwoSteps {
    /// Reductions along rows with fewer results than this, if they are long.
    pub few: i64,
    /// The minimum number of elements of a long reduction along a row.
    pub long: i64,
    /// Reductions of columns with fewer results than this, if they are large.
    pub few_columns: i64,
    /// The minimum number of elements of a large reduction of columns. Its threads share runs of neighbouring results.
    pub large: i64,
}

/// The products whose blocks hold whole rows, so that their epilogues may reduce these.
#[derive(Copy, Clone, Debug)]
pub(crate) struct HeldRows {
    /// The longest row, if rows must be bounded and of a known length.
    pub longest: Option<i64>,
    /// The minimum number of rows of a product, unless it is small.
    pub least: i64,
    /// The multiply-adds of a small product.
    pub few: Few,
}

/// A small number of multiply-adds.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Few {
    /// At most this many for the whole product.
    InAll(i64),
    /// At most this many for each row.
    ARow(i64),
}
