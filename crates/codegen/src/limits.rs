//! The limits of dividing work among threads on a machine, which an engine sets before there are kernels.

/// The limits by which nodes are grouped into kernels.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Limits {
    /// The reductions that run in two steps.
    pub two_steps: TwoSteps,
    /// The longest row that a reduction does not divide.
    pub max_row: i64,
    /// The minimum number of rows that run in parallel, unless there are at most `max_serial_points`.
    pub min_rows: i64,
    /// The maximum number of points that need not run in parallel.
    pub max_serial_points: i64,
    /// The maximum number of columns for which a reduction over rows and columns keeps accumulators.
    pub max_columns: i64,
    /// The products whose epilogues may reduce rows.
    pub held_rows: HeldRows,
}

/// The reductions that run in two steps, for threads to share the work.
#[derive(Copy, Clone, Debug)]
pub(crate) struct TwoSteps {
    /// The number of results below which a long reduction along rows is divided.
    pub few_rows: i64,
    /// The minimum number of elements of a long reduction along a row.
    pub min_long: i64,
    /// The number of results below which a large reduction of columns is divided.
    pub few_columns: i64,
    /// The minimum number of elements of a large reduction of columns, whose threads share neighbouring results.
    pub min_large: i64,
}

/// The products whose blocks hold whole rows, so that their epilogues may reduce these.
#[derive(Copy, Clone, Debug)]
pub(crate) struct HeldRows {
    /// The maximum length of a row, if rows must be bounded and of a known length.
    pub max_row: Option<i64>,
    /// The minimum number of rows of a product, unless it is small.
    pub min_rows: i64,
    /// The multiply-adds of a small product.
    pub max_small: MultiplyAdds,
}

/// A limit of multiply-adds.
#[derive(Copy, Clone, Debug)]
pub(crate) enum MultiplyAdds {
    /// At most this many for the whole product.
    Total(i64),
    /// At most this many for each row.
    PerRow(i64),
}
