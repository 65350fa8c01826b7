//! The same program gives the same plan and the same bits for every thread count.

use crate::matrix;
use crate::tuning::{options, store};
use kiln::tuning::{Mode, Why};
use kiln::{Conv, DType, Spec, Tensor, Var, compile, compile_with, keep};

fn plan() -> Vec<u8> {
    let w = Var::new(matrix(64, 48)).unwrap();
    let f = compile(Spec::new(DType::F32, ("n", 64)), |x| {
        let h = x.matmul(w.get()).gelu();
        let centred = &h - h.mean(keep([1]));
        [centred.softmax(1), h.transpose(0, 1).sum([1])]
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
        let y = x.matmul(matrix(300, 200)).softmax(1);
        let total = x.exp().sum([0, 1]);
        let column = x.sum([0]);
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

#[test]
fn what_is_chosen_by_measuring_does_not_depend_on_the_thread_count() {
    let on = options(Mode::On, &store("any-threads"));
    let (a, w) = (matrix(96, 300), matrix(24, 12 * 9).reshape([24, 12, 3, 3]));
    let images = matrix(2 * 12, 17 * 13).reshape([2, 12, 17, 13]);
    let run = |threads: usize| {
        kiln::set_threads(threads);
        let specs = (Spec::new(DType::F32, [300, 200]), &images);
        let f = compile_with(specs, &on, |(b, images)| {
            [a.matmul(&b), images.conv2d_with(&w, Conv::new().padding(1))]
        });
        let f = f.unwrap();
        let bits = f.run((matrix(300, 200), &images)).unwrap();
        let bits: Vec<Vec<f32>> = bits.iter().map(|t| t.to_vec().unwrap()).collect();
        let choices = f.explain().tuning.choices.iter();
        let choices: Vec<_> = choices
            .map(|c| (c.key.clone(), c.chosen.clone(), c.why.clone()))
            .collect();
        (bits, choices)
    };
    let (bits, choices) = run(2);
    assert!(
        choices.len() >= 2 && choices.iter().all(|c| c.2 == Why::Measured),
        "{choices:?}"
    );
    for threads in [1, 3, 7] {
        let (found, later) = run(threads);
        for ((key, chosen, _), (also, other, why)) in choices.iter().zip(&later) {
            assert_eq!((key, chosen), (also, other));
            assert_ne!(
                *why,
                Why::Measured,
                "{key} is measured again with {threads} threads"
            );
        }
        assert_eq!(found, bits, "{threads} threads");
    }
    kiln::set_threads(std::thread::available_parallelism().map_or(1, |n| n.get()));
}
