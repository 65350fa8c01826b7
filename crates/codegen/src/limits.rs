//! The limits of dividing work on a machine, which an engine sets before there are kernels: how much is divided, and
//! how much a part keeps to itself.

/// The limits by which nodes are grouped into kernels.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Limits {
    /// The reductions that run in two steps.
    pub two_steps: TwoSteps,
    /// The longest row that a reduction does not divide...
    pub longest_row: i64,
    /// ...and the fewest rows that run in parallel, ...
    pub fewest_rows: i64,
    /// ...unless the whole space is done at once, having at most this many points.
    pub few_points: i64,
    /// The most columns for which a reduction over rows and columns keeps accumulators.
    pub most_columns: i64,
    /// The products that hold rows.
    pub held_rows: HeldRows,
}

/// The reductions that run in two steps, so that threads can share the work.
#[derive(Copy, Clone, Debug)]
pub(crate) struct TwoSteps {
    /// Reductions along rows with fewer results than this, ...
    pub few: i64,
    /// ... each of at least this many elements.
    pub long: i64,
    /// Reductions of columns with fewer results than this, ...
    pub few_columns: i64,
    /// ... of at least this many elements in all. There, threads share the work by runs of neighbouring results.
    pub large: i64,
}

/// The products whose blocks hold whole rows, so that their epilogues may reduce these.
#[derive(Copy, Clone, Debug)]
pub(crate) struct HeldRows {
    /// The longest row, if rows must be bounded and of a known length.
    pub longest: Option<i64>,
    /// The fewest rows of a product, ...
    pub least: i64,
    /// ...unless it takes few multiply-adds.
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
