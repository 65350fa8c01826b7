//! The first ten minutes, line by line.

use super::Row;
use kiln_tensor::{DType, Result, Tensor, Var, compile, keep, no_grad};

macro_rules! lines {
    ($($torch:literal = { $($code:tt)* };)* => $results:expr) => {
        pub(super) const ROWS: &[Row] = &[$(Row {
            torch: &[$torch],
            code: stringify!($($code)*),
            note: "",
        }),*];

        /// The lines, one after the other, and some of their results.
        pub(super) fn run() -> Result<Vec<Vec<f32>>> {
            $($($code)*)*
            Ok($results)
        }
    };
}

lines! {
    "x = torch.tensor([[1., 2.], [3., 4.]])" = { let x = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]); };
    "y = torch.ones(2, 2)" = { let y = Tensor::ones([2, 2], DType::F32); };
    "z = x * 2 + y @ x" = { let z = &x * 2 + y.matmul(&x); };
    "size = z.shape" = { let size = z.shape()?; };
    "tail = z[0, 1:]" = { let tail = z.i((0, 1..)); };
    "z[:, 0] = 7" = { let z = z.set((.., 0), 7); };
    "total = z.sum(dim=1, keepdim=True)" = { let total = z.sum(keep(1)); };
    "print(total); total.tolist()" = { println!("{total}"); total.to_vec::<f32>()?; };
    "w = nn.Parameter(torch.ones(2, 2))" = { let w = Var::parameter(&y)?; };
    "loss = F.mse_loss(x @ w, y)" = { let loss = x.matmul(&w).mse_loss(&y); };
    "loss.backward()" = { loss.backward()?; };
    "with torch.no_grad(): w -= 0.1 * w.grad" = { if let Some(g) = w.grad() { w.sub_(&(g * 0.1))?; } };
    "w.grad = None" = { w.zero_grad(); };
    "with torch.no_grad(): p = x @ w" = { let p = no_grad(|| x.matmul(&w)); };
    "f = torch.compile(lambda x: (x @ w).relu())" = { let f = compile(&x, |x| x.matmul(&w).relu())?; };
    "q = f(x)" = { let q = f.run(&x)?; };
    => vec![
        size.into_iter().map(|n| n as f32).collect(),
        tail.to_vec()?,
        total.to_vec()?,
        p.to_vec()?,
        q.to_vec()?,
    ]
}
