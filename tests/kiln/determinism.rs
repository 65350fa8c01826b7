//! The same program gives the same plan and the same bits, whatever the thread count.

use crate::matrix;
use kiln::{DType, Spec, Tensor, Var, compile};

fn plan() -> Vec<u8> {
    let w = Var::new(&matrix(64, 48)).unwrap();
    let f = compile(&[Spec::new(DType::F32, ["n".into(), 64.into()])], |x| {
        let h = x[0].matmul(&w.get()).gelu();
        let centred = &h - h.mean([1], true);
        [centred.softmax(1), h.transpose(0, 1).sum([1], false)]
    })
    .unwrap();
    f.to_bytes()
}

#[test]
fn plans_are_equal_byte_for_byte() {
    let first = plan();
    for _ in 0..3 {
        assert_eq!(plan(), first);
    }
}

#[test]
fn bits_do_not_depend_on_the_thread_count() {
    let run = || -> Vec<Vec<f32>> {
        let x = matrix(512, 300);
        let y = x.matmul(&matrix(300, 200)).softmax(1);
        let total = x.exp().sum([0, 1], false);
        let column = x.sum([0], false);
        [y, total, column]
            .iter()
            .map(|t: &Tensor| t.to_vec().unwrap())
            .collect()
    };
    let all = run();
    kiln::set_threads(1);
    let one = run();
    kiln::set_threads(3);
    let three = run();
    kiln::set_threads(std::thread::available_parallelism().map_or(1, |n| n.get()));
    assert_eq!(all, one);
    assert_eq!(all, three);
}
