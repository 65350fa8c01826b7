//! One iteration of a thread's loop: the values and stores of a point, or of a vector of neighbouring points.

use super::source::{Source, memory};
use super::values::Values;
use super::vector::Vector;
use crate::kir::{Expr, Kernel, Store, Val};
use crate::tile::{ValueSource, without_casts};
use kiln_plan::cstyle::Dialect;
use kiln_plan::cuda::CudaCpp;

/// The values and stores of an iteration.
pub(super) struct Walk<'a> {
    pub kernel: &'a Kernel,
    pub vector: &'a Vector,
    /// Values to define, ascending.
    pub defs: &'a [ValueSource],
    pub stores: &'a [Store],
    /// For each value, true if later loops reuse it.
    pub keeps: &'a [bool],
    /// True if stores are conditional on `live`.
    pub live: bool,
}

/// Emits all values and stores of a kernel without inner axes, at the point at `values`' indices and its neighbours in
/// `vector`.
pub(super) fn emit(source: &mut Source, values: &mut Values, kernel: &Kernel, vector: &Vector) {
    let defs = (0..kernel.body.len() as u32).map(|v| ValueSource::Compute(Val(v)));
    let walk = Walk {
        kernel,
        vector,
        defs: &defs.collect::<Vec<_>>(),
        stores: &kernel.stores,
        keeps: &vec![false; kernel.body.len()],
        live: false,
    };
    walk.emit(source, values);
}

impl Walk<'_> {
    /// Emits the iteration, whose first point is at `values`' indices.
    pub fn emit(&self, source: &mut Source, values: &mut Values) {
        let (invariant, varying): (Vec<ValueSource>, Vec<ValueSource>) =
            self.defs.iter().partition(|d| !self.varies(val(d)));
        for d in &invariant {
            self.define(source, values, d, None);
        }
        let width = self.vector.width;
        if width == 1 {
            if self.live {
                source.line("if (live) {");
            }
            for s in self.stores {
                self.store(source, values, s, "0");
            }
            if self.live {
                source.line("}");
            }
            return;
        }
        for d in &varying {
            self.load_vector(source, values, d);
        }
        let in_registers = values.in_registers;
        let is_in_registers = |arg: u16| in_registers == Some(usize::from(arg));
        let vector_stores: Vec<&Store> = self
            .stores
            .iter()
            .filter(|s| s.combine.is_none() && self.is_vector(s.access))
            .collect();
        for s in &vector_stores {
            let access = &self.kernel.accesses[s.access as usize];
            let dtype = self.kernel.args[access.arg as usize].dtype;
            let ty = match is_in_registers(access.arg) {
                true => CudaCpp::ctype(dtype.compute()),
                false => memory(dtype),
            };
            source.line(format!("kiln_vec<{ty}, {width}> out{};", access.arg));
        }
        source.line("#pragma unroll");
        source.line(format!("for (int k = 0; k < {width}; ++k) {{"));
        let first = values.indices[self.vector.axis].clone();
        values.indices[self.vector.axis] = match first.as_str() {
            "0" => "k".into(),
            first => format!("({first} + k)"),
        };
        for d in &varying {
            self.define(source, values, d, Some("k"));
        }
        for s in self.stores {
            let access = &self.kernel.accesses[s.access as usize];
            if s.combine.is_none() && self.is_vector(s.access) {
                let dtype = self.kernel.args[access.arg as usize].dtype;
                let value = values.name(s.value);
                let value = match is_in_registers(access.arg) {
                    true => value,
                    false => CudaCpp::stored(&value, dtype),
                };
                source.line(format!("out{}.v[k] = {value};", access.arg));
            } else {
                self.store(source, values, s, "k");
            }
        }
        values.indices[self.vector.axis] = first;
        source.line("}");
        for s in vector_stores {
            let arg = self.kernel.accesses[s.access as usize].arg;
            if is_in_registers(arg) {
                continue;
            }
            let address = values.address(source, s.access);
            let statement = format!("kiln_store(arg{arg} + ({address}), out{arg});");
            match values.bounds_condition(source, s.access) {
                Some(condition) => source.line(format!("if {condition} {statement}")),
                None => source.line(statement),
            }
        }
    }

    /// Emits a store, or combines its value at point `k` with that of earlier rows.
    fn store(&self, source: &mut Source, values: &Values, s: &Store, k: &str) {
        let Some(op) = s.combine else {
            return values.store(source, s);
        };
        let acc = format!("{}[t][{k}]", accumulator_name(self.kernel, s));
        let value = values.name(s.value);
        source.line(format!("{acc} = {}::of({acc}, {value});", combiner(op)));
    }

    fn is_vector(&self, access: u16) -> bool {
        self.vector.whole[access as usize]
    }

    /// True if a value is computed for each point of the vector.
    fn varies(&self, v: Val) -> bool {
        let reduction = self.kernel.body[v.index()].expr.is_reduction();
        self.vector.width > 1 && (reduction || self.vector.varies[v.index()])
    }

    /// Returns the access of a load that reads one vector.
    fn vector_load(&self, d: &ValueSource) -> Option<u16> {
        let ValueSource::Compute(v) = d else {
            return None;
        };
        match &self.kernel.body[v.index()].expr {
            Expr::Load { access } | Expr::LoadAt { access, .. } => {
                self.is_vector(*access).then_some(*access)
            }
            _ => None,
        }
    }

    /// Declares the vector that a load reads.
    fn load_vector(&self, source: &mut Source, values: &Values, d: &ValueSource) {
        let Some(access) = self.vector_load(d) else {
            return;
        };
        let v = val(d);
        let arg = self.kernel.accesses[access as usize].arg as usize;
        let (ty, width) = (memory(self.kernel.args[arg].dtype), self.vector.width);
        let address = values.load_address(source, v);
        let load = format!("kiln_load<{width}>(arg{arg} + ({address}))");
        match values.bounds_condition(source, access) {
            None => source.line(format!("const kiln_vec<{ty}, {width}> in{} = {load};", v.0)),
            Some(condition) => {
                source.line(format!("kiln_vec<{ty}, {width}> in{};", v.0));
                source.line(format!("if {condition} in{} = {load};", v.0));
            }
        }
    }

    /// Defines a value at the point, or at point `k` of the vector.
    fn define(&self, source: &mut Source, values: &mut Values, d: &ValueSource, k: Option<&str>) {
        let v = val(d);
        if without_casts(self.kernel, v) != v {
            return;
        }
        let def = &self.kernel.body[v.index()];
        let at_k = k.map_or(String::new(), |k| format!("[{k}]"));
        match (d, &def.expr) {
            (ValueSource::InSlot(_), _) => return values.set(v, format!("kept{}[t]{at_k}", v.0)),
            (_, Expr::Reduce { op, a }) => {
                let (acc, a) = (format!("{v}{at_k}"), values.name(*a));
                source.line(format!("{acc} = {}::of({acc}, {a});", combiner(*op)));
                return;
            }
            (_, Expr::ArgReduce { op, a }) => {
                let (acc, a) = (format!("{v}{at_k}"), values.name(*a));
                let index = k.map_or("i".into(), |k| format!("i + {k}"));
                let ty = CudaCpp::ctype(self.kernel.body[arg_reduce_operand(def)].dtype.compute());
                let candidate = format!("kiln_place<{ty}>{{{a}, {index}}}");
                source.line(format!("{acc} = {}::of({acc}, {candidate});", chooser(*op)));
                return;
            }
            _ => {}
        }
        match (self.vector_load(d), k) {
            (Some(access), Some(k)) => {
                values.define_loaded(source, v, access, &format!("in{}.v[{k}]", v.0))
            }
            _ => values.define(source, v),
        }
        if self.keeps[v.index()] {
            source.line(format!("kept{}[t]{at_k} = {};", v.0, values.name(v)));
        }
    }
}

/// Returns the name of the array in which a store accumulates.
pub(super) fn accumulator_name(kernel: &Kernel, s: &Store) -> String {
    format!("sum{}", kernel.accesses[s.access as usize].arg)
}

fn arg_reduce_operand(def: &crate::kir::Def) -> usize {
    match &def.expr {
        Expr::ArgReduce { a, .. } => a.index(),
        _ => unreachable!("the caller matches arg-reductions"),
    }
}

fn val(d: &ValueSource) -> Val {
    let (ValueSource::Compute(v) | ValueSource::InSlot(v)) = *d;
    v
}

/// Returns the prelude's function that combines two values.
pub(super) fn combiner(op: kiln_base::prim::Reduction) -> &'static str {
    use kiln_base::prim::Reduction::*;
    match op {
        Sum => "kiln_sum",
        Prod => "kiln_prod",
        Max => "kiln_maximum",
        Min => "kiln_minimum",
    }
}

/// Returns the prelude's function that chooses one of two values with their indices.
pub(super) fn chooser(op: kiln_base::prim::Reduction) -> &'static str {
    match op {
        kiln_base::prim::Reduction::Min => "kiln_first<false>",
        _ => "kiln_first<true>",
    }
}
