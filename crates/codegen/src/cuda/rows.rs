//! Kernels with reductions: some threads of a block share the inner points of a row. Where stores combine rows, these
//! threads walk over the rows in order, and each keeps the accumulators of its points in registers.

use super::job::Job;
use super::rows_shape::{Order, Shape};
use super::source::{Index, Source};
use super::values::Values;
use super::walk::{Walk, accumulator_name, chooser, combiner};
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
    let pairs = aliasing_pairs(kernel, &job.in_place, shape);
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
        points: numel(parallel_axes(kernel)),
        each: shape.rows,
    };
    let block = [shape.rows * shape.lanes, 1, 1];
    (
        source.finish([grid, Blocks::one(), Blocks::one()], block),
        pairs,
    )
}

/// Returns the axes whose points are divided among threads.
fn parallel_axes(kernel: &Kernel) -> &[Dim] {
    &kernel.axes[..kernel.axes.len() - kernel.serial]
}

/// Emits the epilogue of row `row` of a library kernel's result. Threads know their `lane`. The C expression `raw` is
/// the raw result at inner point `i`.
pub(super) fn emit_epilogue(kernel: &Kernel, shape: &Shape, raw: &str, source: &mut Source) {
    let (mut rows, plans) = Rows::new(kernel, shape, source);
    rows.values.replace(kernel.args.len() - 1, raw);
    rows.emit_row(&plans);
}

/// Returns the pairs of arguments among `in_place` that may alias.
pub(super) fn aliasing_pairs(
    kernel: &Kernel,
    in_place: &[(usize, usize)],
    shape: &Shape,
) -> Vec<(usize, usize)> {
    let (plans, _) = tile::plan(kernel, &shape.keep);
    let mut pairs = tile::may_alias(kernel, &plans);
    pairs.retain(|p| in_place.contains(p) && shape.may_overwrite(kernel, p.1));
    pairs
}

struct Rows<'a> {
    kernel: &'a Kernel,
    shape: &'a Shape,
    /// For each value, true if later loops reuse it.
    keeps: Vec<bool>,
    values: Values<'a>,
    source: &'a mut Source,
}

impl<'a> Rows<'a> {
    /// Returns the emitter of a kernel, and the plans to emit.
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

    /// Declares the shared memory for the accumulators of a row's warps.
    fn declare_shared(&mut self) {
        let Shape { lanes, rows, .. } = *self.shape;
        let extents = match self.shape.order {
            Order::InnerFirst if lanes > 32 => format!("[{}]", lanes / 32),
            Order::RowsFirst if lanes > 1 => format!("[{lanes}][{rows}]"),
            _ => return,
        };
        let reductions = (0..self.kernel.body.len() as u32).map(Val);
        let reductions = reductions.filter(|v| self.kernel.body[v.index()].expr.is_reduction());
        let declare = |v| format!("    {} {v}{extents};\n", self.accumulator(v).0);
        let fields: String = reductions.map(declare).collect();
        if !fields.is_empty() {
            self.source.scope(&format!("struct Shared {{\n{fields}}};"));
            self.source.shared("Shared");
        }
    }

    /// Declares the row and lane of a thread.
    fn declare_row(&mut self) {
        let Shape { rows, lanes, .. } = *self.shape;
        let index = self.source.index;
        let count = self.source.dim(&numel(parallel_axes(self.kernel)));
        let (lane, row_in_block) = match self.shape.order {
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
        let number = match (rows, lanes, index) {
            (1, ..) => "(int)blockIdx.x".into(),
            (_, 1, Index::Int) => format!("(int)(blockIdx.x * {rows} + threadIdx.x)"),
            (_, 1, Index::Long) => format!("(long long)blockIdx.x * {rows} + threadIdx.x"),
            (_, _, Index::Int) => format!("(int)(blockIdx.x * {rows} + {row_in_block})"),
            (_, _, Index::Long) => format!("(long long)blockIdx.x * {rows} + {row_in_block}"),
        };
        let index = index.name();
        if self.shape.pads() {
            self.line(format!("const {index} padded_row = {number};"));
            self.line(format!("const bool live = padded_row < {count};"));
            self.line(format!(
                "const {index} row = live ? padded_row : {count} - 1;"
            ));
        } else {
            let name = if self.kernel.serial > 0 {
                "part"
            } else {
                "row"
            };
            self.line(format!("const {index} {name} = {number};"));
            if rows > 1 {
                self.line(format!("if ({name} >= {count}) return;"));
            }
        }
    }

    /// Emits the work on the rows of part `part`, in order.
    fn emit_rows_in_order(&mut self, plans: &[StagePlan]) {
        let kernel = self.kernel;
        let serial = numel(&kernel.axes[parallel_axes(kernel).len()..]);
        let serial = serial.as_const().expect("serial axes have known extents");
        let combining: Vec<&Store> = kernel
            .stores
            .iter()
            .filter(|s| s.combine.is_some())
            .collect();
        let (trips, width) = (self.trips(), self.shape.vector.width);
        for s in &combining {
            let compute = kernel.body[s.value.index()].dtype.compute();
            let op = s.combine.expect("the filter keeps stores that combine");
            let identity = CudaCpp::identity(op, compute);
            let name = accumulator_name(kernel, s);
            self.line(format!(
                "{} {name}[{trips}][{width}];",
                CudaCpp::ctype(compute)
            ));
            self.line("#pragma unroll");
            self.line(format!("for (int t = 0; t < {trips}; ++t)"));
            self.line(format!(
                "    for (int k = 0; k < {width}; ++k) {name}[t][k] = {identity};"
            ));
        }
        let index = self.source.index.name();
        self.line(format!("for (int step = 0; step < {serial}; ++step) {{"));
        self.line(format!("const {index} row = part * {serial} + step;"));
        self.emit_row(plans);
        if self.shape.lanes > 32 {
            self.line("__syncthreads();"); // the next row overwrites shared memory
        }
        self.line("}");
        self.line(format!("const {index} row = part * {serial};"));
        self.values.decompose(self.source, "row");
        let open_braces = self.open_inner_loop(true);
        self.line("#pragma unroll");
        self.line(format!("for (int k = 0; k < {width}; ++k) {{"));
        let Rows { values, source, .. } = self;
        let axis = self.shape.vector.axis;
        values.indices[axis] = format!("({} + k)", values.indices[axis]);
        for s in &combining {
            values.store_as(source, s, &format!("{}[t][k]", accumulator_name(kernel, s)));
        }
        for _ in 0..=open_braces {
            self.line("}");
        }
    }

    /// Returns the number of trips of a thread over its points of a row.
    fn trips(&self) -> u32 {
        self.shape.trips.expect("serial kernels have known trips")
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
                let trips = self.shape.trips.expect("kept values have known trips");
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

    /// Emits a loop over the inner points, and the reductions over it.
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
        let open_braces = self.open_inner_loop(plan.defs.len() <= 24);
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
        for _ in 0..open_braces {
            self.line("}");
        }
        self.combine_lanes(&reductions);
    }

    /// Opens each thread's loop over its inner points, and returns the number of braces that close it.
    fn open_inner_loop(&mut self, unroll: bool) -> usize {
        let width = self.shape.vector.width;
        let lanes = self.shape.lanes;
        let index = self.source.index.name();
        let count = self.source.dim(&numel(&self.kernel.inner));
        let lane = if lanes > 1 { "lane" } else { "0" };
        let mut open_braces = 1;
        if let Some(trips) = self.shape.trips {
            let points = i64::from(trips * lanes * width);
            let exact = numel(&self.kernel.inner).is(points);
            self.line("#pragma unroll");
            self.line(format!("for (int t = 0; t < {trips}; ++t) {{"));
            let point = match lanes {
                1 => "t".into(),
                _ => format!("(t * {lanes} + lane)"),
            };
            let point = if width > 1 {
                format!("{point} * {width}")
            } else {
                point
            };
            self.line(format!("const {index} i = {point};"));
            if !exact {
                self.line(format!("if (i < {count}) {{"));
                open_braces += 1;
            }
        } else {
            let begin = if width > 1 {
                format!("{lane} * {width}")
            } else {
                lane.into()
            };
            if unroll {
                self.line("#pragma unroll 4");
            }
            self.line(format!(
                "for ({index} i = {begin}; i < {count}; i += {}) {{",
                lanes * width
            ));
        }
        self.values.decompose_inner(self.source, "i");
        open_braces
    }

    /// Returns the C type of a reduction's accumulator, its initial value, and the function that combines two.
    fn accumulator(&self, v: Val) -> (String, String, String) {
        match &self.kernel.body[v.index()].expr {
            Expr::Reduce { op, .. } => {
                let compute = self.kernel.body[v.index()].dtype.compute();
                let function = combiner(*op).to_string();
                (
                    CudaCpp::ctype(compute).into(),
                    CudaCpp::identity(*op, compute),
                    function,
                )
            }
            Expr::ArgReduce { op, a } => {
                let compute = self.kernel.body[a.index()].dtype.compute();
                let ty = format!("kiln_place<{}>", CudaCpp::ctype(compute));
                let initial = format!("{ty}{{{}, kiln_nowhere}}", CudaCpp::identity(*op, compute));
                (ty, initial, chooser(*op).into())
            }
            _ => unreachable!("only reductions have accumulators"),
        }
    }

    fn declare_accumulator(&mut self, v: Val) {
        let (ty, initial, _) = self.accumulator(v);
        match self.shape.vector.width {
            1 => self.line(format!("{ty} {v} = {initial};")),
            width => {
                let list = vec![initial; width as usize].join(", ");
                self.line(format!("{ty} {v}[{width}] = {{{list}}};"));
            }
        }
    }

    /// Combines the accumulators of the lanes, for every lane.
    fn combine_lanes(&mut self, reductions: &[Val]) {
        let Shape { lanes, rows, .. } = *self.shape;
        let width = self.shape.vector.width;
        let mut shared = Vec::new();
        for v in reductions {
            let (ty, _, function) = self.accumulator(*v);
            let mut partials: Vec<String> = match width {
                1 => vec![v.to_string()],
                width => (0..width).map(|k| format!("{v}[{k}]")).collect(),
            };
            while partials.len() > 1 {
                let pair = |p: &[String]| format!("{function}::of({}, {})", p[0], p[1]);
                partials = partials.chunks(2).map(pair).collect();
            }
            let partial = partials.remove(0);
            match self.shape.order {
                Order::InnerFirst if lanes > 1 => {
                    let warp = lanes.min(32);
                    let value = format!("kiln_lanes<{function}, {warp}>({partial})");
                    self.line(format!("{ty} r{} = {value};", v.0));
                    if lanes > 32 {
                        shared.push(format!(
                            "if (lane % 32 == 0) shared.{v}[lane / 32] = r{};",
                            v.0
                        ));
                    }
                }
                Order::RowsFirst if lanes > 1 => {
                    self.line(format!("{ty} r{} = {partial};", v.0));
                    shared.push(format!(
                        "shared.{v}[lane][threadIdx.x % {rows}] = r{};",
                        v.0
                    ));
                }
                _ => self.line(format!("{ty} r{} = {partial};", v.0)),
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
                    let value = format!("({name}.at == kiln_nowhere ? 0 : {name}.at)");
                    self.line(format!("const long long at{} = {value};", v.0));
                    self.values.set(*v, format!("at{}", v.0));
                }
                _ => self.values.set(*v, name),
            }
        }
    }

    /// Combines the accumulators that the lanes have stored in shared memory.
    fn read_shared(&mut self, v: Val) {
        let Shape { lanes, rows, .. } = *self.shape;
        let (_, _, function) = self.accumulator(v);
        let n = v.0;
        match self.shape.order {
            Order::InnerFirst => {
                let warps = lanes / 32;
                self.line(format!(
                    "r{n} = kiln_lanes<{function}, {warps}>(shared.{v}[lane % {warps}]);"
                ));
            }
            Order::RowsFirst => {
                self.line(format!("r{n} = shared.{v}[0][threadIdx.x % {rows}];"));
                self.line("#pragma unroll");
                self.line(format!(
                    "for (int l = 1; l < {lanes}; ++l) r{n} = {function}::of(r{n}, shared.{v}[l][threadIdx.x % {rows}]);"
                ));
            }
        }
    }
}

impl Shape {
    /// True if threads beyond the last row must take part in barriers.
    fn pads(&self) -> bool {
        self.order == Order::RowsFirst && self.lanes > 1
    }

    /// True if a result may overwrite the values that a row reads at the same addresses: only the writing thread reads
    /// them.
    fn may_overwrite(&self, kernel: &Kernel, written: usize) -> bool {
        let outer = kernel.axes.len();
        let is_written = |s: &&Store| kernel.accesses[s.access as usize].arg as usize == written;
        let moves = kernel.stores.iter().find(is_written).is_some_and(|s| {
            let strides = &kernel.accesses[s.access as usize].strides;
            strides[outer..].iter().any(|s: &Dim| !s.is(0))
        });
        self.lanes == 1 || (moves && !self.pads())
    }
}
