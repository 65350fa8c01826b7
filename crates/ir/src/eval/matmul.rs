use super::{Array, Context, Data};

pub(super) fn eval(a: &Array, b: &Array, cx: &Context) -> Data {
    let r = a.shape().len();
    let sizes = Sizes {
        batch: a.shape()[..r - 2].iter().product(),
        m: a.shape()[r - 2],
        k: a.shape()[r - 1],
        n: b.shape()[r - 1],
    };
    match (a.data(), b.data()) {
        (Data::Float(a), Data::Float(b)) => {
            let add = |sum: f64, x, y| cx.partial(sum + x * y);
            Data::Float(product(&sizes, a, b, 0.0, add))
        }
        (Data::Int(a), Data::Int(b)) => Data::Int(product(&sizes, a, b, 0, |sum, x, y| {
            sum.wrapping_add(x.wrapping_mul(y))
        })),
        _ => unreachable!("inference wants one dtype"),
    }
}

struct Sizes {
    batch: usize,
    m: usize,
    k: usize,
    n: usize,
}

fn product<T: Copy>(
    s: &Sizes,
    a: &[T],
    b: &[T],
    zero: T,
    multiply_add: impl Fn(T, T, T) -> T,
) -> Vec<T> {
    let mut out = vec![zero; s.batch * s.m * s.n];
    if s.n == 0 {
        return out;
    }
    for (row, sums) in out.chunks_exact_mut(s.n).enumerate() {
        let batch = row / s.m;
        for k in 0..s.k {
            let x = a[row * s.k + k];
            let start = (batch * s.k + k) * s.n;
            for (sum, y) in sums.iter_mut().zip(&b[start..start + s.n]) {
                *sum = multiply_add(*sum, x, *y);
            }
        }
    }
    out
}
