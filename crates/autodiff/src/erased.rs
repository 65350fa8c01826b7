//! A type-erased builder, so that each rule is compiled once.

use crate::{Call, Gradients, rule};
use kiln_base::prim::{Reduction, ScatterKind};
use kiln_ir::ops::{Gather, Scatter};
use kiln_ir::{Builder, Fact, Op, OpError};
use smallvec::SmallVec;

/// The index of a value in a [`Table`].
#[derive(Clone)]
pub(crate) struct Id(usize);

/// The builder that rules record on.
pub(crate) struct Erased<'e>(&'e mut dyn IndexedBuilder);

/// A builder with indices for its values.
trait IndexedBuilder {
    fn emit(&mut self, op: Op, inputs: &[Id]) -> Result<SmallVec<[Id; 1]>, OpError>;
    fn with_fact(&self, value: &Id, f: &mut dyn FnMut(&Fact));
    fn on_one_device(&mut self, inputs: &[Id]) -> Result<Option<Vec<Id>>, OpError>;
    fn reduce_keepdim(&mut self, kind: Reduction, x: &Id, axes: &[usize]) -> Result<Id, OpError>;
}

/// Any builder, and the values that have indices so far.
struct Table<'b, B: Builder> {
    inner: &'b mut B,
    values: Vec<B::Value>,
}

/// Returns the gradients of the operands, by the op's rule.
pub(crate) fn pullback<B: Builder>(
    b: &mut B,
    call: &Call<'_, B::Value>,
    cotangents: &[Option<B::Value>],
) -> Result<Gradients<B::Value>, OpError> {
    let mut table = Table {
        inner: b,
        values: Vec::new(),
    };
    let inputs = table.add_all(call.inputs);
    let outputs = table.add_all(call.outputs);
    let add = |g: &Option<B::Value>| g.as_ref().map(|g| table.add(g.clone()));
    let cotangents: SmallVec<[Option<Id>; 2]> = cotangents.iter().map(add).collect();
    let call = Call {
        op: call.op,
        inputs: &inputs,
        outputs: &outputs,
        needs_grad: call.needs_grad,
    };
    let gradients = rule(&mut Erased(&mut table), &call, &cotangents)?;
    let value = |g: Option<Id>| g.map(|Id(i)| table.values[i].clone());
    Ok(gradients.into_iter().map(value).collect())
}

impl<B: Builder> Table<'_, B> {
    fn add(&mut self, value: B::Value) -> Id {
        self.values.push(value);
        Id(self.values.len() - 1)
    }

    fn add_all(&mut self, values: &[B::Value]) -> SmallVec<[Id; 3]> {
        values.iter().map(|v| self.add(v.clone())).collect()
    }

    fn values(&self, ids: &[Id]) -> SmallVec<[B::Value; 3]> {
        ids.iter().map(|Id(i)| self.values[*i].clone()).collect()
    }
}

impl<B: Builder> IndexedBuilder for Table<'_, B> {
    fn emit(&mut self, op: Op, inputs: &[Id]) -> Result<SmallVec<[Id; 1]>, OpError> {
        let outputs = self.inner.emit(op, &self.values(inputs))?;
        Ok(outputs.into_iter().map(|v| self.add(v)).collect())
    }

    fn with_fact(&self, Id(i): &Id, f: &mut dyn FnMut(&Fact)) {
        self.inner.with_fact(&self.values[*i], f);
    }

    fn on_one_device(&mut self, inputs: &[Id]) -> Result<Option<Vec<Id>>, OpError> {
        let moved = self.inner.on_one_device(&self.values(inputs))?;
        Ok(moved.map(|values| values.into_iter().map(|v| self.add(v)).collect()))
    }

    fn reduce_keepdim(
        &mut self,
        kind: Reduction,
        Id(i): &Id,
        axes: &[usize],
    ) -> Result<Id, OpError> {
        let x = self.values[*i].clone();
        let reduced = self.inner.reduce_keepdim(kind, &x, axes)?;
        Ok(self.add(reduced))
    }
}

impl Erased<'_> {
    /// Returns a constant of the dtype and shape of a value.
    pub(crate) fn full_like(&mut self, number: f64, v: &Id) -> Result<Id, OpError> {
        let Fact { dtype, shape } = self.fact(v);
        self.full(number, dtype, &shape)
    }

    /// Gathers the elements of `v` at an index along an axis.
    pub(crate) fn gather(&mut self, v: &Id, axis: usize, index: &Id) -> Result<Id, OpError> {
        self.op(Gather { axis }, &[v.clone(), index.clone()])
    }

    /// Adds the elements of `src` to `x` at an index along an axis.
    pub(crate) fn scatter_add(
        &mut self,
        x: &Id,
        axis: usize,
        index: &Id,
        src: &Id,
    ) -> Result<Id, OpError> {
        let kind = ScatterKind::Sum;
        let operands = [x.clone(), index.clone(), src.clone()];
        self.op(Scatter { axis, kind }, &operands)
    }
}

impl Builder for Erased<'_> {
    type Value = Id;

    fn emit(&mut self, op: Op, inputs: &[Id]) -> Result<SmallVec<[Id; 1]>, OpError> {
        self.0.emit(op, inputs)
    }

    fn fact(&self, value: &Id) -> Fact {
        self.with_fact(value, Fact::clone)
    }

    fn with_fact<R>(&self, value: &Id, f: impl FnOnce(&Fact) -> R) -> R {
        let (mut f, mut result) = (Some(f), None);
        self.0
            .with_fact(value, &mut |fact| result = f.take().map(|f| f(fact)));
        result.expect("a builder calls `f` once")
    }

    fn on_one_device(&mut self, inputs: &[Id]) -> Result<Option<Vec<Id>>, OpError> {
        self.0.on_one_device(inputs)
    }

    fn reduce_keepdim(&mut self, kind: Reduction, x: &Id, axes: &[usize]) -> Result<Id, OpError> {
        self.0.reduce_keepdim(kind, x, axes)
    }
}
