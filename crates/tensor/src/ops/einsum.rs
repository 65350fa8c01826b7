//! Einstein summation.

use crate::operand::{AsTensor, listed};
use crate::record::{Recorded, Recorder, compose};
use crate::{Tensor, autocast};
use kiln_base::{Dim, numel};
use kiln_ir::{Builder, OpError, Shape, ensure};

/// The label of the i-th dim that an ellipsis stands for, counted from the last.
fn ellipsis_label(i: usize) -> char {
    char::from_u32(0xE000 + i as u32).unwrap_or('\u{E000}')
}

/// Sums of products of elements, indexed by letters: `"ij,jk->ik"` is a matrix product. Each operand lists a letter
/// for each dim; letters that the result does not list are summed over. Without `->`, the result has the letters that
/// occur once, in alphabetical order. `...` stands for any number of dims, which broadcast. Operands must have the
/// same dtype.
///
/// ```
/// use kiln_tensor::{DType, Tensor, einsum};
/// let (x, y) = (Tensor::ones([2, 3], DType::F32), Tensor::ones([3, 4], DType::F32));
/// assert_eq!(einsum("ij,jk->ik", &[&x, &y]).shape()?, [2, 4]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn einsum(equation: &str, operands: impl IntoIterator<Item: AsTensor>) -> Tensor {
    let mut operands = listed(operands);
    autocast::cast_all("einsum", &mut operands);
    let operands = &operands.iter().collect::<Vec<_>>()[..];
    compose("einsum", operands, |b| {
        let (inputs, output) = parse(equation, operands)?;
        let mut terms = Vec::new();
        for (t, labels) in operands.iter().zip(inputs) {
            terms.push(
                Term {
                    tensor: (*t).clone(),
                    labels,
                }
                .diagonal(b)?,
            );
        }
        let mut terms = terms.into_iter();
        let mut left = terms
            .next()
            .ok_or_else(|| OpError::new("needs at least one operand"))?;
        let mut remaining: Vec<Term> = terms.collect();
        while !remaining.is_empty() {
            let right = remaining.remove(0);
            let needed =
                |l: &char| output.contains(l) || remaining.iter().any(|t| t.labels.contains(l));
            left = left.multiply(b, right, needed)?;
        }
        left.arrange(b, &output)
    })
}

type Labels = Vec<char>;

/// The labels of each operand and of the result.
fn parse(equation: &str, operands: &[&Tensor]) -> Result<(Vec<Labels>, Labels), OpError> {
    let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match text.split_once("->") {
        Some((l, r)) => (l.to_string(), Some(r.to_string())),
        None => (text, None),
    };
    let parts: Vec<&str> = left.split(',').collect();
    ensure!(
        parts.len() == operands.len(),
        "{equation:?} names {} operands, but {} are given",
        parts.len(),
        operands.len()
    );
    let mut inputs = Vec::new();
    let mut longest = 0;
    for (labels_text, t) in parts.iter().zip(operands) {
        let named = labels_text.replace("...", "").chars().count();
        let hidden = if labels_text.contains("...") {
            t.ndim().saturating_sub(named)
        } else {
            0
        };
        longest = longest.max(hidden);
        let labels = expand_ellipsis(labels_text, hidden)?;
        ensure!(
            labels.len() == t.ndim(),
            "{labels_text:?} names {} dims, but the operand is {}",
            labels.len(),
            t.fact()
        );
        inputs.push(labels);
    }
    let output = match right {
        Some(r) => expand_ellipsis(&r, longest)?,
        None => {
            let input_labels: Vec<char> = inputs.iter().flatten().copied().collect();
            let is_unique = |c: &&char| input_labels.iter().filter(|d| d == c).count() == 1;
            let mut letters: Labels = input_labels
                .iter()
                .filter(|c| c.is_ascii())
                .filter(is_unique)
                .copied()
                .collect();
            letters.sort_unstable();
            (0..longest)
                .rev()
                .map(ellipsis_label)
                .chain(letters)
                .collect()
        }
    };
    for (i, c) in output.iter().enumerate() {
        ensure!(
            !output[..i].contains(c),
            "{equation:?} lists {c} twice in the result"
        );
        ensure!(
            inputs.iter().any(|l| l.contains(c)),
            "{equation:?} has {c} in the result but in no operand"
        );
    }
    Ok((inputs, output))
}

fn expand_ellipsis(part: &str, hidden: usize) -> Result<Labels, OpError> {
    let mut labels = Labels::new();
    let pieces: Vec<&str> = part.split("...").collect();
    ensure!(pieces.len() <= 2, "{part:?} has more than one ellipsis");
    for (i, piece) in pieces.iter().enumerate() {
        if i > 0 {
            labels.extend((0..hidden).rev().map(ellipsis_label));
        }
        for c in piece.chars() {
            ensure!(c.is_ascii_alphabetic(), "{c:?} is not a letter");
            labels.push(c);
        }
    }
    Ok(labels)
}

/// A tensor with a label for each dim.
struct Term {
    tensor: Tensor,
    labels: Labels,
}

impl Term {
    /// Merges repeated labels by taking the diagonal of their dims.
    fn diagonal(mut self, b: &mut Recorder) -> Result<Term, OpError> {
        let repeated = |labels: &Labels| {
            let pairs = (0..labels.len()).flat_map(|j| (0..j).map(move |i| (i, j)));
            let mut pairs = pairs.filter(|(i, j)| labels[*i] == labels[*j]);
            pairs.next()
        };
        while let Some((i, j)) = repeated(&self.labels) {
            let dims = self.tensor.dims();
            ensure!(
                dims[i] == dims[j],
                "the dims {} of {} differ in size",
                self.labels[i],
                self.tensor.fact()
            );
            let mut perm: Vec<usize> = (0..dims.len()).filter(|a| *a != i && *a != j).collect();
            perm.extend([i, j]);
            let label = self.labels[i];
            self.labels.retain(|l| *l != label);
            self.labels.push(label);
            let moved = b.permute(&self.tensor, &perm)?;
            self.tensor = super::diagonal::extract(b, &moved, 0)?;
        }
        Ok(self)
    }

    fn size(&self, label: char) -> Option<&Dim> {
        let index = self.labels.iter().position(|l| *l == label)?;
        Some(&self.tensor.dims()[index])
    }

    /// Sums over the labels for which `kept` is false.
    fn sum_except(self, b: &mut Recorder, kept: impl Fn(&char) -> bool) -> Result<Term, OpError> {
        let axes: Vec<usize> = (0..self.labels.len())
            .filter(|i| !kept(&self.labels[*i]))
            .collect();
        let labels = self.labels.iter().copied().filter(&kept).collect();
        Ok(Term {
            tensor: b.sum(&self.tensor, &axes, false)?,
            labels,
        })
    }

    /// Permutes the dims into the order of these labels, which must be all of this term's.
    fn permute(&self, b: &mut Recorder, order: &[char]) -> Recorded {
        let perm: Vec<usize> = order
            .iter()
            .filter_map(|l| self.labels.iter().position(|m| m == l))
            .collect();
        b.permute(&self.tensor, &perm)
    }

    /// The product of two terms, as a batched matrix product; labels not needed later are summed.
    fn multiply(
        self,
        b: &mut Recorder,
        other: Term,
        needed: impl Fn(&char) -> bool,
    ) -> Result<Term, OpError> {
        let left = self.sum_unshared(b, &other, &needed)?;
        let right = other.sum_unshared(b, &left, &needed)?;
        let (left, right) = align(b, left, right)?;
        let both = |l: &char| right.labels.contains(l);
        let pick = |labels: &Labels, f: &dyn Fn(&char) -> bool| -> Labels {
            labels.iter().copied().filter(f).collect()
        };
        let batch = pick(&left.labels, &|l| both(l) && needed(l));
        let inner = pick(&left.labels, &|l| both(l) && !needed(l));
        let rows = pick(&left.labels, &|l| !both(l));
        let columns = pick(&right.labels, &|l| !left.labels.contains(l));
        let sizes = |t: &Term, labels: &Labels| -> Shape {
            labels.iter().filter_map(|l| t.size(*l).cloned()).collect()
        };
        let (bs, ks) = (sizes(&left, &batch), sizes(&left, &inner));
        let (ms, ns) = (sizes(&left, &rows), sizes(&right, &columns));
        let joined = |tail: [&Shape; 2]| -> Shape {
            bs.iter().cloned().chain(tail.map(|s| numel(s))).collect()
        };
        let l = left.permute(b, &[&batch[..], &rows, &inner].concat())?;
        let l = b.reshape(&l, &joined([&ms, &ks]))?;
        let r = right.permute(b, &[&batch[..], &inner, &columns].concat())?;
        let r = b.reshape(&r, &joined([&ks, &ns]))?;
        let product = b.product(&l, &r)?;
        let shape: Shape = [&bs[..], &ms, &ns].concat().into_iter().collect();
        Ok(Term {
            tensor: b.reshape(&product, &shape)?,
            labels: [batch, rows, columns].concat(),
        })
    }

    fn sum_unshared(
        self,
        b: &mut Recorder,
        other: &Term,
        needed: &impl Fn(&char) -> bool,
    ) -> Result<Term, OpError> {
        self.sum_except(b, |l| needed(l) || other.labels.contains(l))
    }

    /// The result in the order of the output's labels.
    fn arrange(self, b: &mut Recorder, output: &Labels) -> Recorded {
        let term = self.sum_except(b, |l| output.contains(l))?;
        term.permute(b, output)
    }
}

/// Gives shared labels the same size in both terms, by broadcasting dims of size 1.
fn align(b: &mut Recorder, mut x: Term, mut y: Term) -> Result<(Term, Term), OpError> {
    for label in x.labels.clone() {
        let (Some(m), Some(n)) = (x.size(label).cloned(), y.size(label).cloned()) else {
            continue;
        };
        ensure!(
            m == n || m.is(1) || n.is(1),
            "the sizes {m} and {n} of the dims {label} differ"
        );
        let (short, size) = if m.is(1) { (&mut x, n) } else { (&mut y, m) };
        let mut shape = Shape::from(short.tensor.dims());
        if let Some(axis) = short.labels.iter().position(|l| *l == label) {
            shape[axis] = size;
        }
        short.tensor = b.broadcast_to(&short.tensor, &shape)?;
    }
    Ok((x, y))
}
