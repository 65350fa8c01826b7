//! Kernels with reductions: some threads of a block share the inner points of a row. Where stores combine rows, these
//! threads walk over the rows in order, and each keeps the accumulators of its points in registers.

use super::job::Job;
use super::rows_shape::{Order, Shape};
use super::source::{Index, Source};
use super::values::Values;
use super::walk::{Walk, combine, first, sum};
use crate::kir::{Expr, Kernel, Store, Val};
use crate::tile::{self, StagePlan, ValueSource};
use kiln_base::{Dim, numel};
use kiln_plan::cstyle::Dialect;
use kiln_plan::cuda::{Blocks, CudaCpp, CudaKernel};

/// Emits the kernel, with fast math if `fast`, and returns the pairs of arguments that may alias.
pub(super) fn emit(
    job: Job,
    kernel: &Kernel,
    shape: &Shape,
    fast: bool,
) -> (CudaKernel, Vec<(usize, usize)>) {
    let pairs = may_share(kernel, &job.in_place, shape);
    let mut source = job.source(kernel, &pairs);
    let (mut rows, plans) = Rows::new(kernel, shape, &mut source);
    rows.values.fast = fast;
    rows.declare_shared();
    rows.declare_row();
    match kernel.serial {
        0 => rows.emit_row(&plans),
        _ => rows.emit_rows_in_order(&plans),
    }
    let grid = Blocks {
        points: numel(parallel(kernel)),
        each: shape.rows,
    };
    let block = [shape.rows * shape.lanes, 1, 1];
    (
        source.finish([grid, Blocks::one(), Blocks::one()], block),
        pairs,
    )
}

/// Returns the axes whose points are divided among threads.
fn parallel(kernel: &Kernel) -> &[Dim] {
    &kernel.axes[..kernel.axes.len() - kernel.serial]
}

/// Emits the epilogue of row number `row` of a library kernel's result, for the threads of its block that are its
/// `lane`s. The raw result at inner point `i` is the C expression `raw`.
pub(super) fn emit_epilogue(kernel: &Kernel, shape: &Shape, raw: &str, source: &mut Source) {
    let (mut rows, plans) = Rows::new(kernel, shape, source);
    rows.values.replace(kernel.args.len() - 1, raw);
    rows.emit_row(&plans);
}

/// Returns the pairs of arguments among `in_place` that may alias.
pub(super) fn may_share(
    kernel: &Kernel,
    in_place: &[(usize, usize)],
    shape: &Shape,
) -> Vec<(usize, usize)> {
    let (plans, _) = tile::plan(kernel, &shape.keep);
    let mut pairs = tile::may_alias(kernel, &plans);
    pairs.retain(|p| in_place.contains(p) && shape.may_share(kernel, p.1));
    pairs
}

struct Rows<'a> {
    kernel: &'a Kernel,
    shape: &'a Shape,
    /// For each value, true if it is kept for later walks.
    keeps: Vec<bool>,
    values: Values<'a>,
    source: &'a mut Source,
}

impl<'a> Rows<'a> {
    /// Makes an emitter with no text yet, and returns the plans to emit.
    fn new(
        kernel: &'a Kernel,
        shape: &'a Shape,
        source: &'a mut Source,
    ) -> (Rows<'a>, Vec<StagePlan>) {
        let (plans, slots) = tile::plan(kernel, &shape.keep);
        let rows = Rows {
            kernel,
            shape,
            keeps: slots.iter().map(Option::is_some).collect(),
            values: Values::new(kernel),
            source,
        };
        (rows, plans)
    }

    fn line(&mut self, text: impl AsRef<str>) {
        self.source.line(text);
    }

    /// Declares the shared memory in which the warps of a row leave their accumulators.
    fn declare_shared(&mut self) {
        let Shape { lanes, rows, .. } = *self.shape;
        let places = match self.shape.order {
            Order::InnerFirst if lanes > 32 => format!("[{}]", lanes / 32),
            Order::RowsFirst if lanes > 1 => format!("[{lanes}][{rows}]"),
            _ => return,
        };
        let reductions = (0..self.kernel.body.len() as u32).map(Val);
        let reductions = reductions.filter(|v| self.kernel.body[v.index()].expr.is_reduction());
        let place = |v| format!("    {} {v}{places};\n", self.accumulates(v).0);
        let places: String = reductions.map(place).collect();
        if !places.is_empty() {
            self.source.scope(&format!("struct Shared {{\n{places}}};"));
            self.source.shared("Shared");
        }
    }

    /// Declares the row and lane of a thread.
    fn declare_row(&mut self) {
        let Shape { rows, lanes, .. } = *self.shape;
        let index = self.source.index;
        let count = self.source.dim(&numel(parallel(self.kernel)));
        let (lane, within) = match self.shape.order {
            Order::InnerFirst => (
                format!("threadIdx.x % {lanes}"),
                format!("threadIdx.x / {lanes}"),
            ),
            Order::RowsFirst => (
                format!("threadIdx.x / {rows}"),
                format!("threadIdx.x % {rows}"),
            ),
        };
        if lanes > 1 {
            self.line(format!("const int lane = {lane};"));
        }
        let at = match (rows, lanes, index) {
            (1, ..) => "(int)blockIdx.x".into(),
            (_, 1, Index::Int) => format!("(int)(blockIdx.x * {rows} + threadIdx.x)"),
            (_, 1, Index::Long) => format!("(long long)blockIdx.x * {rows} + threadIdx.x"),
            (_, _, Index::Int) => format!("(int)(blockIdx.x * {rows} + {within})"),
            (_, _, Index::Long) => format!("(long long)blockIdx.x * {rows} + {within}"),
        };
        let index = index.name();
        if self.shape.pads() {
            self.line(format!("const {index} place = {at};"));
            self.line(format!("const bool live = place < {count};"));
            self.line(format!("const {index} row = live ? place : {count} - 1;"));
        } else {
            let name = if self.kernel.serial > 0 {
                "part"
            } else {
                "row"
            };
            self.line(format!("const {index} {name} = {at};"));
            if rows > 1 {
                self.line(format!("if ({name} >= {count}) return;"));
            }
        }
    }

    /// Emits the work on the rows of part number `part`, in order.
    fn emit_rows_in_order(&mut self, plans: &[StagePlan]) {
        let kernel = self.kernel;
        let serial = numel(&kernel.axes[parallel(kernel).len()..]);
        let serial = serial.as_const().expect("axes walked in order are known");
        let sums: Vec<&Store> = kernel
            .stores
            .iter()
            .filter(|s| s.combine.is_some())
            .collect();
        let (trips, width) = (self.trips(), self.shape.vector.width);
        for s in &sums {
            let compute = kernel.body[s.value.index()].dtype.compute();
            let op = s.combine.expect("only these are here");
            let start = CudaCpp::identity(op, compute);
            let name = sum(kernel, s);
            self.line(format!(
                "{} {name}[{trips}][{width}];",
                CudaCpp::ctype(compute)
            ));
            self.line("#pragma unroll");
            self.line(format!("for (int t = 0; t < {trips}; ++t)"));
            self.line(format!(
                "    for (int k = 0; k < {width}; ++k) {name}[t][k] = {start};"
            ));
        }
        let index = self.source.index.name();
        self.line(format!("for (int turn = 0; turn < {serial}; ++turn) {{"));
        self.line(format!("const {index} row = part * {serial} + turn;"));
        self.emit_row(plans);
        if self.shape.lanes > 32 {
            self.line("__syncthreads();"); // what is shared is written again
        }
        self.line("}");
        self.line(format!("const {index} row = part * {serial};"));
        self.values.decompose(self.source, "row");
        let closing = self.open_inner_loop(true);
        self.line("#pragma unroll");
        self.line(format!("for (int k = 0; k < {width}; ++k) {{"));
        let Rows { values, source, .. } = self;
        let axis = self.shape.vector.axis;
        values.indices[axis] = format!("({} + k)", values.indices[axis]);
        for s in &sums {
            values.store_as(source, s, &format!("{}[t][k]", sum(kernel, s)));
        }
        for _ in 0..=closing {
            self.line("}");
        }
    }

    /// Returns the number of trips of a thread over its points of a row.
    fn trips(&self) -> u32 {
        self.shape
            .trips
            .expect("points of rows in order have places")
    }

    /// Emits the work on a row.
    fn emit_row(&mut self, plans: &[StagePlan]) {
        let Rows { values, source, .. } = self;
        values.decompose(source, "row");
        for (v, keeps) in self.keeps.clone().into_iter().enumerate() {
            if keeps {
                let ty = CudaCpp::ctype(self.kernel.body[v].dtype.compute());
                let vector = &self.shape.vector;
                let lanes = match vector.width > 1 && vector.varies[v] {
                    true => format!("[{}]", vector.width),
                    false => String::new(),
                };
                let trips = self.shape.trips.expect("kept values have places");
                self.line(format!("{ty} kept{v}[{trips}]{lanes};"));
            }
        }
        for plan in plans {
            match plan.over_inner {
                false => self.emit_row_values(plan),
                true => self.emit_inner(plan),
            }
        }
    }

    /// Emits the values that are the same for a whole row, and their stores.
    fn emit_row_values(&mut self, plan: &StagePlan) {
        for d in &plan.defs {
            if let ValueSource::Compute(v) = d {
                self.values.define(self.source, *v);
            }
        }
        self.emit_row_stores(&plan.stores);
    }

    fn emit_row_stores(&mut self, stores: &[Store]) {
        if stores.is_empty() {
            return;
        }
        let guarded = match (self.shape.lanes > 1, self.shape.pads()) {
            (true, false) => Some("if (lane == 0) {"),
            (_, true) => Some("if (lane == 0 && live) {"),
            (false, false) => None,
        };
        if let Some(open) = guarded {
            self.line(open);
        }
        for s in stores {
            self.values.store(self.source, s);
        }
        if guarded.is_some() {
            self.line("}");
        }
    }

    /// Emits a walk over the inner points, and the reductions that it ends.
    fn emit_inner(&mut self, plan: &StagePlan) {
        let reductions: Vec<Val> = (plan.defs.iter())
            .filter_map(|d| match d {
                ValueSource::Compute(v) => self.kernel.body[v.index()]
                    .expr
                    .is_reduction()
                    .then_some(*v),
                ValueSource::InSlot(_) => None,
            })
            .collect();
        for v in &reductions {
            self.declare_accumulator(*v);
        }
        let closing = self.open_inner_loop(plan.defs.len() <= 24);
        let stores_guarded = self.shape.pads() && !plan.stores.is_empty();
        let walk = Walk {
            kernel: self.kernel,
            vector: &self.shape.vector,
            defs: &plan.defs,
            stores: &plan.stores,
            keeps: &self.keeps,
            live: stores_guarded,
        };
        walk.emit(self.source, &mut self.values);
        for _ in 0..closing {
            self.line("}");
        }
        self.combine_lanes(&reductions);
    }

    /// Opens a walk of each thread over its inner points, and returns the number of braces that close it.
    fn open_inner_loop(&mut self, unroll: bool) -> usize {
        let width = self.shape.vector.width;
        let lanes = self.shape.lanes;
        let index = self.source.index.name();
        let count = self.source.dim(&numel(&self.kernel.inner));
        let lane = if lanes > 1 { "lane" } else { "0" };
        let mut closing = 1;
        if let Some(trips) = self.shape.trips {
            let points = i64::from(trips * lanes * width);
            let exact = numel(&self.kernel.inner).is(points);
            self.line("#pragma unroll");
            self.line(format!("for (int t = 0; t < {trips}; ++t) {{"));
            let at = match lanes {
                1 => "t".into(),
                _ => format!("(t * {lanes} + lane)"),
            };
            let at = if width > 1 {
                format!("{at} * {width}")
            } else {
                at
            };
            self.line(format!("const {index} i = {at};"));
            if !exact {
                self.line(format!("if (i < {count}) {{"));
                closing += 1;
            }
        } else {
            let start = if width > 1 {
                format!("{lane} * {width}")
            } else {
                lane.into()
            };
            if unroll {
                self.line("#pragma unroll 4");
            }
            self.line(format!(
                "for ({index} i = {start}; i < {count}; i += {}) {{",
                lanes * width
            ));
        }
        self.values.decompose_inner(self.source, "i");
        closing
    }

    /// Returns the C type of a reduction's accumulator, its initial value, and the function that combines.
    fn accumulates(&self, v: Val) -> (String, String, String) {
        match &self.kernel.body[v.index()].expr {
            Expr::Reduce { op, .. } => {
                let compute = self.kernel.body[v.index()].dtype.compute();
                let by = combine(*op).to_string();
                (
                    CudaCpp::ctype(compute).into(),
                    CudaCpp::identity(*op, compute),
                    by,
                )
            }
            Expr::ArgReduce { op, a } => {
                let compute = self.kernel.body[a.index()].dtype.compute();
                let ty = format!("kiln_place<{}>", CudaCpp::ctype(compute));
                let start = format!("{ty}{{{}, kiln_nowhere}}", CudaCpp::identity(*op, compute));
                (ty, start, first(*op).into())
            }
            _ => unreachable!("called for reductions"),
        }
    }

    fn declare_accumulator(&mut self, v: Val) {
        let (ty, start, _) = self.accumulates(v);
        match self.shape.vector.width {
            1 => self.line(format!("{ty} {v} = {start};")),
            width => {
                let each = vec![start; width as usize].join(", ");
                self.line(format!("{ty} {v}[{width}] = {{{each}}};"));
            }
        }
    }

    /// Combines the accumulators of the lanes, for every lane.
    fn combine_lanes(&mut self, reductions: &[Val]) {
        let Shape { lanes, rows, .. } = *self.shape;
        let width = self.shape.vector.width;
        let mut shared = Vec::new();
        for v in reductions {
            let (ty, _, by) = self.accumulates(*v);
            let mut all: Vec<String> = match width {
                1 => vec![v.to_string()],
                width => (0..width).map(|k| format!("{v}[{k}]")).collect(),
            };
            while all.len() > 1 {
                let pair = |p: &[String]| format!("{by}::of({}, {})", p[0], p[1]);
                all = all.chunks(2).map(pair).collect();
            }
            let mine = all.remove(0);
            match self.shape.order {
                Order::InnerFirst if lanes > 1 => {
                    let warp = lanes.min(32);
                    self.line(format!("{ty} r{} = kiln_lanes<{by}, {warp}>({mine});", v.0));
                    if lanes > 32 {
                        shared.push(format!(
                            "if (lane % 32 == 0) shared.{v}[lane / 32] = r{};",
                            v.0
                        ));
                    }
                }
                Order::RowsFirst if lanes > 1 => {
                    self.line(format!("{ty} r{} = {mine};", v.0));
                    shared.push(format!(
                        "shared.{v}[lane][threadIdx.x % {rows}] = r{};",
                        v.0
                    ));
                }
                _ => self.line(format!("{ty} r{} = {mine};", v.0)),
            }
        }
        if !shared.is_empty() {
            for line in shared {
                self.line(line);
            }
            self.line("__syncthreads();");
            for v in reductions {
                self.read_shared(*v);
            }
        }
        for v in reductions {
            let name = format!("r{}", v.0);
            match self.kernel.body[v.index()].expr {
                Expr::ArgReduce { .. } => {
                    let at = format!("({name}.at == kiln_nowhere ? 0 : {name}.at)");
                    self.line(format!("const long long at{} = {at};", v.0));
                    self.values.set(*v, format!("at{}", v.0));
                }
                _ => self.values.set(*v, name),
            }
        }
    }

    /// Reads the accumulators that the other lanes have left in shared memory.
    fn read_shared(&mut self, v: Val) {
        let Shape { lanes, rows, .. } = *self.shape;
        let (_, _, by) = self.accumulates(v);
        let n = v.0;
        match self.shape.order {
            Order::InnerFirst => {
                let warps = lanes / 32;
                self.line(format!(
                    "r{n} = kiln_lanes<{by}, {warps}>(shared.{v}[lane % {warps}]);"
                ));
            }
            Order::RowsFirst => {
                self.line(format!("r{n} = shared.{v}[0][threadIdx.x % {rows}];"));
                self.line("#pragma unroll");
                self.line(format!(
                    "for (int l = 1; l < {lanes}; ++l) r{n} = {by}::of(r{n}, shared.{v}[l][threadIdx.x % {rows}]);"
                ));
            }
        }
    }
}

impl Shape {
    /// True if threads beyond the last row stay, because others wait for them.
    fn pads(&self) -> bool {
        self.order == Order::RowsFirst && self.lanes > 1
    }

    /// True if a result may overwrite the values that a row reads at the same addresses: the thread that writes must be
    /// the only one that reads.
    fn may_share(&self, kernel: &Kernel, written: usize) -> bool {
        let outer = kernel.axes.len();
        let inside = |s: &&Store| kernel.accesses[s.access as usize].arg as usize == written;
        let moves = kernel.stores.iter().find(inside).is_some_and(|s| {
            let strides = &kernel.accesses[s.access as usize].strides;
            strides[outer..].iter().any(|s: &Dim| !s.is(0))
        });
        self.lanes == 1 || (moves && !self.pads())
    }
}
