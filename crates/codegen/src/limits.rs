//! How much work a machine shares out, and how much of it a part keeps to itself: what an engine says before there are
//! kernels.

/// What decides how nodes are grouped into kernels.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Limits {
    /// Which reductions run in two steps.
    pub two_steps: TwoSteps,
    /// The longest row that a reduction keeps to itself...
    pub longest_row: i64,
    /// ...and the fewest rows that run in parallel, ...
    pub fewest_rows: i64,
    /// ...unless all is done at once, as so many points are.
    pub few_points: i64,
    /// The most columns that a reduction over rows and columns keeps a number for.
    pub most_columns: i64,
    /// Which products hold rows.
    pub held_rows: HeldRows,
}

/// Which reductions run in two steps, so that threads can share the work.
#[derive(Copy, Clone, Debug)]
pub(crate) struct TwoSteps {
    /// Those along rows with fewer results than this, ...
    pub few: i64,
    /// ... each of at least so many elements.
    pub long: i64,
    /// Those of columns with fewer results than this, ...
    pub few_columns: i64,
    /// ... of at least so many elements in all. There, threads share the work by runs of neighbouring
    /// results.
    pub large: i64,
}

/// Which products have blocks that hold whole rows, so that what is behind them may reduce these.
#[derive(Copy, Clone, Debug)]
pub(crate) struct HeldRows {
    /// The longest, if they must be as short and of a known length.
    pub longest: Option<i64>,
    /// The least rows of a product, ...
    pub least: i64,
    /// ...unless it takes few multiply-adds.
    pub few: Few,
}

/// Few multiply-adds.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Few {
    /// So many for the whole product.
    InAll(i64),
    /// So many for each row.
    ARow(i64),
}
