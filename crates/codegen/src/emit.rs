//! Lowering of a group to a kernel.
//!
//! Roots are emitted recursively from their operands, down to loads. A value is emitted once for each index map at
//! which it is needed. Under the predicate of padding or a concatenation, loads have the predicate as bounds and never
//! read outside of a buffer. Values that could report a data error there (indices, divisors) are replaced by a valid
//! number.

use crate::LowerError;
use crate::affine::{Affine, Map, Space, flatten};
use crate::flow::{Flow, Nid, Node, Op, Rounding, View};
use crate::fuse::{Group, find_storage, through_reduction, through_reshapes, through_view};
use crate::kir::{Access, Bound, Dynamic, Expr, KernelBuilder, PointwiseBuilder, Val, wide};
use hashbrown::HashMap;
use kiln_base::prim::{Binary, Reduction};
use kiln_base::{DType, Dim, Scalar};
use kiln_ir::Pw;
use kiln_plan::SiteKind;
use smallvec::SmallVec;

/// `0 <= index < extent`.
type Predicate = (Affine, Dim);
type Predicates = SmallVec<[Predicate; 2]>;

/// The origin of an argument of the kernel.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ArgOf {
    /// The buffer of a node.
    Buffer(Nid),
    /// The raw result of the library kernel.
    Raw,
}

/// A kernel of a group.
pub(crate) struct Emitted {
    pub builder: KernelBuilder,
    /// The origin of each argument; [`ArgOf::Raw`] comes last.
    pub args: Vec<ArgOf>,
}

/// Returns the kernel of a group, or the epilogue of a library kernel. Its first arguments are `operands`.
///
/// # Errors
/// If the group is inconsistent, which is a bug.
pub(crate) fn emit(flow: &Flow, group: &Group, operands: &[Nid]) -> Result<Emitted, LowerError> {
    let mut e = Emitter::new(flow, group);
    for o in operands {
        e.buffer(*o, false);
    }
    let mut values = Vec::with_capacity(group.roots.len());
    for (n, map) in &group.roots {
        let map = e.space.resolve_map(map);
        let (value, index, combine) = match e.find_combined(*n, &map) {
            Some((value, index, op)) => (value, index, Some(op)),
            None => (*n, map.clone(), None),
        };
        values.push((e.unrounded(value, index, Predicates::new())?, map, combine));
    }
    for ((n, _), (v, map, combine)) in group.roots.iter().zip(values) {
        let arg = e.buffer(*n, true);
        let flat = flow.nodes[*n].address(&map);
        let access = e.access(arg, &flat, &Predicates::new(), flow.nodes[*n].dtype);
        let replacement = match combine {
            None => e.find_rounded(v).or_else(|| e.round_in_store(v)),
            Some(_) => None,
        };
        e.k.store(access, replacement.unwrap_or(v), combine);
    }
    let prologues = group.prologues.iter().flat_map(|b| &b.group.members);
    let nodes = group.members.iter().chain(prologues).copied();
    Ok(e.finish(kernel_name(flow, nodes.collect())))
}

/// Returns the prologue that computes an operand of `product`, which is the raw argument.
///
/// # Errors
/// As [`emit`].
pub(crate) fn emit_prologue(
    flow: &Flow,
    group: &Group,
    product: Nid,
) -> Result<Emitted, LowerError> {
    let mut e = Emitter::new(flow, group);
    let (n, map) = &group.roots[0];
    let map = e.space.resolve_map(map);
    let value = e.unrounded(*n, map.clone(), Predicates::new())?;
    let (flat, dtype) = (flow.nodes[*n].address(&map), flow.nodes[*n].dtype);
    let arg = e.arg(ArgOf::Raw, dtype, true);
    let access = e.access(arg, &flat, &Predicates::new(), dtype);
    e.k.store(access, value, None);
    let nodes = group.members.iter().copied().chain([product]);
    Ok(e.finish(kernel_name(flow, nodes.collect())))
}

struct Emitter<'a> {
    flow: &'a Flow,
    group: &'a Group,
    space: Space,
    k: KernelBuilder,
    args: Vec<ArgOf>,
    memo: HashMap<(Nid, Map, Predicates), Val>,
}

impl<'a> Emitter<'a> {
    fn new(flow: &'a Flow, group: &'a Group) -> Emitter<'a> {
        let mut space = group.space.clone();
        let ordered = space.ordered.clone();
        space.axes.sort_by_key(|a| ordered.contains(a));
        let mut k = KernelBuilder::default();
        k.kernel.axes = space.extents(&space.axes);
        k.kernel.serial = ordered.len();
        k.kernel.inner = space.extents(&space.inner);
        Emitter {
            flow,
            group,
            space,
            k,
            args: Vec::new(),
            memo: HashMap::new(),
        }
    }

    fn finish(mut self, name: String) -> Emitted {
        if let Some(raw) = self.args.iter().position(|a| *a == ArgOf::Raw) {
            self.move_to_end(raw as u16);
        }
        self.k.kernel.name = name;
        self.k.kernel.simplify();
        Emitted {
            builder: self.k,
            args: self.args,
        }
    }

    fn node(&self, v: Nid) -> &'a Node {
        &self.flow.nodes[v]
    }

    fn buffer(&mut self, n: Nid, written: bool) -> u16 {
        self.arg(ArgOf::Buffer(n), self.node(n).dtype, written)
    }

    fn arg(&mut self, origin: ArgOf, dtype: DType, written: bool) -> u16 {
        if let Some(index) = self.args.iter().position(|a| *a == origin) {
            return index as u16;
        }
        self.args.push(origin);
        self.k.arg(dtype, written)
    }

    /// Moves an argument to the end.
    fn move_to_end(&mut self, index: u16) {
        let last = self.args.len() as u16 - 1;
        let origin = self.args.remove(index as usize);
        self.args.push(origin);
        let arg = self.k.kernel.args.remove(index as usize);
        self.k.kernel.args.push(arg);
        for a in &mut self.k.kernel.accesses {
            a.arg = match a.arg {
                x if x == index => last,
                x if x > index => x - 1,
                x => x,
            };
        }
    }

    fn strides(&self, e: &Affine) -> Vec<Dim> {
        let axes = self.space.axes.iter().chain(&self.space.inner);
        axes.map(|a| e.coefficient(*a)).collect()
    }

    fn access(&self, arg: u16, flat: &Affine, bounds: &Predicates, dtype: DType) -> Access {
        let flat = self.space.resolve(flat);
        Access {
            arg,
            offset: flat.offset.clone(),
            strides: self.strides(&flat),
            bounds: bounds
                .iter()
                .map(|(e, extent)| Bound {
                    offset: e.offset.clone(),
                    strides: self.strides(e),
                    extent: extent.clone(),
                })
                .collect(),
            fill: Scalar::Int(0).cast(dtype),
        }
    }

    fn index(&mut self, e: &Affine) -> Val {
        let e = self.space.resolve(e);
        let strides = self.strides(&e);
        self.k.index(e.offset.clone(), strides)
    }

    /// Returns a bool value that is true if all predicates hold; `None` if there are none.
    fn mask(&mut self, predicates: &[Predicate]) -> Option<Val> {
        let mut mask: Option<Val> = None;
        for (e, extent) in predicates {
            let (never_negative, never_past_end) = self.space.known_bounds(e, extent);
            let index = self.index(e);
            let mut tests: SmallVec<[Val; 2]> = SmallVec::new();
            if !never_negative {
                let zero = self.k.constant(Scalar::Int(0), DType::I64);
                tests.push(self.k.binary(Binary::Ge, index, zero, 0));
            }
            if !never_past_end {
                let extent = self.k.index(extent.clone(), self.strides(&Affine::zero()));
                tests.push(self.k.binary(Binary::Lt, index, extent, 0));
            }
            for t in tests {
                mask = Some(match mask {
                    None => t,
                    Some(a) => self.k.binary(Binary::And, a, t, 0),
                });
            }
        }
        mask
    }

    /// Adds a predicate unless it always holds.
    fn require(&self, predicates: &mut Predicates, e: Affine, extent: &Dim) {
        let e = self.space.resolve(&e);
        let p = (e, extent.clone());
        if self.space.known_bounds(&p.0, extent) != (true, true) && !predicates.contains(&p) {
            predicates.push(p);
        }
    }

    fn load(&mut self, v: Nid, flat: &Affine, predicates: &Predicates) -> Val {
        let dtype = self.node(v).dtype;
        if self.flow.numel(v).is(0) {
            return self.k.constant(Scalar::Int(0), dtype); // no point reads it
        }
        let arg = self.buffer(v, false);
        let access = self.access(arg, flat, predicates, dtype);
        let access = self.k.access(access);
        self.k.def(Expr::Load { access }, dtype)
    }

    /// Emits a value for its readers. If it is also stored, it is rounded to its dtype. All kernels then compute from
    /// the same number.
    fn value(&mut self, v: Nid, map: Map, predicates: Predicates) -> Result<Val, LowerError> {
        let val = self.unrounded(v, map, predicates)?;
        let is_stored = self.group.roots.iter().any(|(root, _)| *root == v);
        Ok(if is_stored { self.round_half(val) } else { val })
    }

    /// Emits the rounding of an f16 or bf16, which kernels compute in f32, to its dtype. Other values are unchanged.
    fn round_half(&mut self, val: Val) -> Val {
        let dtype = self.k.dtype(val);
        let arg_of = |access: u16| self.args[self.k.kernel.accesses[access as usize].arg as usize];
        let is_exact = match self.k.expr(val) {
            Expr::Load { access } | Expr::LoadAt { access, .. } => arg_of(*access) != ArgOf::Raw,
            Expr::Convert { from, .. } => *from != dtype,
            Expr::Const(_) => true,
            _ => false,
        };
        if is_exact || !dtype.is_half() {
            return val;
        }
        let wide = self.k.convert(val, DType::F32);
        self.k.convert(wide, dtype)
    }

    /// Returns the rounded f16 or bf16 of a value, if it was already emitted for another reader.
    fn find_rounded(&self, val: Val) -> Option<Val> {
        let half = self.k.dtype(val);
        if !half.is_half() {
            return None;
        }
        let find_cast = |a: Val, from: DType, to: DType| self.k.find(Expr::Convert { a, from }, to);
        let wide = find_cast(val, half, DType::F32)?;
        find_cast(wide, DType::F32, half)
    }

    /// Emits a cast to a float of 8 bits without rounding, since its store rounds it.
    fn round_in_store(&mut self, val: Val) -> Option<Val> {
        let dtype = self.k.dtype(val);
        match *self.k.expr(val) {
            Expr::Convert { a, from } if dtype.float8().is_some() => {
                let is_same_type = from.compute() == dtype.compute() && from != dtype;
                is_same_type.then(|| self.k.def(Expr::Convert { a, from: dtype }, dtype))
            }
            _ => None,
        }
    }

    /// Emits a value once for each map, without rounding f16 and bf16.
    fn unrounded(&mut self, v: Nid, map: Map, predicates: Predicates) -> Result<Val, LowerError> {
        let map = self.space.resolve_map(&map);
        let key = (v, map, predicates);
        if let Some(val) = self.memo.get(&key) {
            return Ok(*val);
        }
        let val = self.compute(v, &key.1, &key.2)?;
        self.memo.insert(key, val);
        Ok(val)
    }

    fn compute(&mut self, v: Nid, map: &Map, predicates: &Predicates) -> Result<Val, LowerError> {
        let node = self.node(v);
        if node.is_leaf() || self.group.loaded.contains(&v) {
            return Ok(self.load(v, &node.address(map), predicates));
        }
        Ok(match &node.op {
            Op::Input(_) | Op::Data(_) | Op::After => unreachable!("leaves are loaded"),
            Op::Library(..) | Op::Control(_) | Op::Part => {
                return Err(self.compiler_bug(v, "a kernel of its own has work on its result"));
            }
            Op::Scalar(s) => self.k.constant(*s, node.dtype),
            Op::Iota => self.index(&map[0]),
            Op::Size(n) => self.index(&Affine::constant(n.clone())),
            Op::Random(kind) => {
                let mut word = |i: i64| {
                    let m = Map::from_iter([Affine::constant(Dim::Const(i))]);
                    self.value(node.inputs[0], m, Predicates::new())
                };
                let (seed, offset) = (word(0)?, word(1)?);
                let index = self.index(&flatten(map, &node.shape));
                let dtype = match node.dtype {
                    DType::F16 | DType::BF16 => DType::F32,
                    other => other,
                };
                let random = Expr::Random {
                    kind: *kind,
                    seed,
                    offset,
                    index,
                };
                let random = self.k.def(random, dtype);
                self.k.convert(random, node.dtype)
            }
            Op::Pw(pw) => {
                let mut operands = self.operands(node, map, predicates)?;
                if matches!(pw, Pw::Eq | Pw::Ne | Pw::Lt | Pw::Le | Pw::Gt | Pw::Ge) {
                    operands
                        .iter_mut()
                        .for_each(|o| *o = self.round_half(Val(*o)).0);
                }
                let mask = match node.dtype.is_int() {
                    true => self.mask(predicates),
                    false => None,
                };
                let mut b = PointwiseBuilder {
                    kernel: &mut self.k,
                    node: node.source.node.0,
                    op: pw.name(),
                    mask,
                };
                Val((pw.row().expr)(&mut b, &operands))
            }
            Op::Cast(rounding) => {
                let a = Val(self.operands(node, map, predicates)?[0]);
                match (rounding, self.k.dtype(a), node.dtype) {
                    (Rounding::Stored, DType::F32, half @ (DType::F16 | DType::BF16)) => {
                        self.k.def(Expr::Convert { a, from: half }, half)
                    }
                    _ => self.k.convert(a, node.dtype),
                }
            }
            Op::Copy => Val(self.operands(node, map, predicates)?[0]),
            Op::View(view) => self.view(node, view, map, predicates)?,
            Op::Reshape => self.reshape(v, map, predicates)?,
            Op::Concat(axis) => self.concat(node, *axis, map, predicates)?,
            Op::Gather(axis) => self.gather(node, *axis, map, predicates)?,
            // The group visits every element of a reduction once, so predicates are not needed.
            Op::Reduce(..) | Op::ArgReduce(..) => self.reduction(v, map)?,
            Op::MatMul | Op::Conv(_) | Op::Attention(_) => {
                if self.group.anchor.as_ref().map(|a| a.node) != Some(v) {
                    return Err(self.compiler_bug(v, "a product is computed twice"));
                }
                let arg = self.arg(ArgOf::Raw, node.dtype, false);
                // Every point of the space has an element, so predicates are not needed.
                let flat = node.raw_address(map);
                let access = self.access(arg, &flat, &Predicates::new(), node.dtype);
                let access = self.k.access(access);
                self.k.def(Expr::Load { access }, node.dtype)
            }
        })
    }

    /// Returns the operand of a reduction over axes walked in order, its map, and the reduction.
    fn find_combined(&self, v: Nid, map: &Map) -> Option<(Nid, Map, Reduction)> {
        let node = self.node(v);
        let Op::Reduce(op, _) = node.op else {
            return None;
        };
        let inner = self.space.resolve_map(self.group.reduced.get(&v)?);
        let mut axes = inner.iter().flat_map(|e| &e.terms);
        let operand = node.inputs[0];
        let rank = self.node(operand).shape.len();
        let operand_map = || through_reduction(&node.op, rank, map, &inner);
        axes.any(|(a, _)| self.space.ordered.contains(a))
            .then(|| (operand, operand_map(), op))
    }

    fn compiler_bug(&self, v: Nid, text: &str) -> LowerError {
        let node = self.node(v);
        let text = format!("{} (a bug in the compiler)", text);
        LowerError::new(node.source.node, text)
    }

    fn operands(
        &mut self,
        node: &Node,
        map: &Map,
        predicates: &Predicates,
    ) -> Result<SmallVec<[u32; 3]>, LowerError> {
        node.inputs
            .iter()
            .map(|i| Ok(self.value(*i, map.clone(), predicates.clone())?.0))
            .collect()
    }

    fn view(
        &mut self,
        node: &Node,
        view: &View,
        map: &Map,
        predicates: &Predicates,
    ) -> Result<Val, LowerError> {
        let operand = node.inputs[0];
        let m = self.space.resolve_map(&through_view(view, map));
        let Some((dims, fill)) = &view.fill else {
            return self.value(operand, m, predicates.clone());
        };
        let mut inside = predicates.clone();
        for &d in dims {
            self.require(&mut inside, m[d].clone(), &self.node(operand).shape[d]);
        }
        let new = inside[predicates.len()..].to_vec();
        let num_bounds = inside.len();
        let a = self.value(operand, m, inside)?;
        if new.is_empty() {
            return Ok(a);
        }
        let fill = fill.cast(node.dtype);
        match self.k.expr(a) {
            Expr::Const(c) if *c == fill => return Ok(a),
            // A load under these predicates only, without padding of its own.
            Expr::Load { access }
                if self.k.kernel.accesses[*access as usize].bounds.len() == num_bounds =>
            {
                let mut access = self.k.kernel.accesses[*access as usize].clone();
                access.fill = fill;
                let access = self.k.access(access);
                return Ok(self.k.def(Expr::Load { access }, node.dtype));
            }
            _ => {}
        }
        let fill = self.k.constant(fill, node.dtype);
        let mask = self.mask(&new).expect("predicates that may fail");
        Ok(self.k.select(mask, a, fill))
    }

    fn reshape(&mut self, v: Nid, map: &Map, predicates: &Predicates) -> Result<Val, LowerError> {
        let node = self.node(v);
        let operand = node.inputs[0];
        let from = &self.node(operand).shape;
        if let Some(m) = self.space.through_reshape(map, from, &node.shape, false) {
            return self.value(operand, m, predicates.clone());
        }
        let group = self.group;
        let is_loaded = |n: Nid| group.loaded.contains(&n);
        let flat = flatten(map, &node.shape);
        let (root, flat) = through_reshapes(self.flow, operand, flat, &is_loaded);
        if !self.node(root).is_leaf() && !is_loaded(root) {
            return Err(self.compiler_bug(v, "its operand is not in memory"));
        }
        Ok(self.load(root, &flat, predicates))
    }

    fn concat(
        &mut self,
        node: &Node,
        axis: usize,
        map: &Map,
        predicates: &Predicates,
    ) -> Result<Val, LowerError> {
        let mut parts: Vec<(Val, Dim)> = Vec::new(); // values and their ends along the axis
        let mut offset = Dim::ZERO;
        for &i in &node.inputs {
            let extent = self.node(i).shape[axis].clone();
            if extent.is(0) {
                continue;
            }
            let mut m = map.clone();
            m[axis] = m[axis].clone().plus(&(&Dim::ZERO - &offset));
            let mut in_bounds = predicates.clone();
            self.require(&mut in_bounds, m[axis].clone(), &extent);
            offset = &offset + &extent;
            parts.push((self.value(i, m, in_bounds)?, offset.clone()));
        }
        let Some((mut value, _)) = parts.pop() else {
            return Ok(self.k.constant(Scalar::Int(0), node.dtype)); // there are no points
        };
        let strides = self.strides(&Affine::zero());
        while let Some((part, end)) = parts.pop() {
            let index = self.index(&map[axis]);
            let end = self.k.index(end, strides.clone());
            let is_before = self.k.binary(Binary::Lt, index, end, 0);
            value = self.k.select(is_before, part, value);
        }
        Ok(value)
    }

    fn gather(
        &mut self,
        node: &Node,
        axis: usize,
        map: &Map,
        predicates: &Predicates,
    ) -> Result<Val, LowerError> {
        let (x, index) = (node.inputs[0], node.inputs[1]);
        let mut position = self.value(index, map.clone(), predicates.clone())?;
        if let Some(mask) = self.mask(predicates) {
            let zero = self.k.constant(Scalar::Int(0), DType::I64);
            position = self.k.select(mask, position, zero);
        }
        let extent = self.node(x).shape[axis].clone();
        let axis_of_index = self.space.add(extent.clone());
        let mut m = map.clone();
        m[axis] = Affine::axis(axis_of_index);
        let group = self.group;
        let is_loaded = |n: Nid| group.loaded.contains(&n);
        let (stored, mut flat) = find_storage(self.flow, &mut self.space, x, &m, &is_loaded);
        if !self.node(stored).is_leaf() && !is_loaded(stored) {
            return Err(self.compiler_bug(x, "the operand of a gather is not in memory"));
        }
        let stride = flat.coefficient(axis_of_index);
        flat.terms.retain(|t| t.0 != axis_of_index);
        let arg = self.buffer(stored, false);
        let access = self.access(arg, &flat, predicates, node.dtype);
        let access = self.k.access(access);
        let site = self
            .k
            .site("gather", SiteKind::IndexOutOfRange, node.source.node.0);
        let dynamic = vec![Dynamic {
            index: position,
            stride,
            extent,
            site,
        }];
        Ok(self.k.def(Expr::LoadAt { access, dynamic }, node.dtype))
    }

    fn reduction(&mut self, v: Nid, map: &Map) -> Result<Val, LowerError> {
        let node = self.node(v);
        let Some(inner) = self.group.reduced.get(&v) else {
            return Err(self.compiler_bug(v, "a reduction is not part of its group"));
        };
        let inner = self.space.resolve_map(inner);
        let operand = node.inputs[0];
        let rank = self.node(operand).shape.len();
        let m = through_reduction(&node.op, rank, map, &inner);
        let mut a = self.value(operand, m, Predicates::new())?;
        if let Op::ArgReduce(..) = node.op {
            a = self.round_half(a);
        }
        let bool_operand = self.k.dtype(a) == DType::Bool;
        if bool_operand {
            a = self.k.convert(a, DType::I32);
        }
        let dtype = self.k.dtype(a);
        Ok(match &node.op {
            Op::ArgReduce(op, _) => self.k.def(Expr::ArgReduce { op: *op, a }, DType::I64),
            Op::Reduce(op, _) => {
                let reduced = self.k.def(Expr::Reduce { op: *op, a }, dtype);
                match bool_operand {
                    true => self.k.convert(reduced, DType::Bool),
                    false if wide(dtype) != dtype => self.k.wrap(reduced),
                    false => reduced,
                }
            }
            _ => unreachable!("the caller matches reductions"),
        })
    }
}

/// Returns a readable name: the ops of these nodes, operands first.
fn kernel_name(flow: &Flow, mut nodes: Vec<Nid>) -> String {
    const MAX_OPS: usize = 6;
    nodes.sort();
    nodes.dedup();
    let names = |is_named: &dyn Fn(&Node) -> bool| -> Vec<&'static str> {
        nodes
            .iter()
            .map(|n| &flow.nodes[*n])
            .filter(|n| is_named(n))
            .map(Node::name)
            .collect()
    };
    let mut list = names(&|n| !n.is_index_map() && !matches!(n.op, Op::Cast(_) | Op::Copy));
    if list.is_empty() {
        list = names(&|n| !n.is_index_map());
    }
    if list.is_empty() {
        list = names(&|_| true);
    }
    list.dedup();
    if list.len() > MAX_OPS {
        let hidden = list.len() - MAX_OPS + 1;
        list.truncate(MAX_OPS - 1);
        return format!("{}_and_{hidden}_more", list.join("_"));
    }
    list.join("_")
}
