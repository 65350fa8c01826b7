use super::*;
use kiln_base::Sym;

fn dims(d: &[i64]) -> Vec<Dim> {
    d.iter().map(|d| Dim::Const(*d)).collect()
}

fn eval(e: &Affine, values: &[i64]) -> i64 {
    e.terms.iter().fold(e.offset.as_const().unwrap(), |n, t| {
        n + values[t.0 as usize] * t.1.as_const().unwrap()
    })
}

/// Pulls the identity over `to` back into `from` and compares with arithmetic at every point.
fn check(from: &[i64], to: &[i64]) -> bool {
    let (from_d, to_d) = (dims(from), dims(to));
    let (mut space, map) = Space::over(&to_d);
    let Some(pulled) = space.through_reshape(&map, &from_d, &to_d, true) else {
        return false;
    };
    let flat = flatten(&pulled, &from_d);
    let wanted = space.resolve(&flatten(&map, &to_d));
    assert_eq!(flat, wanted, "{from:?} {to:?}");
    let axes = space.axes.clone();
    let mut at = vec![0i64; space.table.len()];
    loop {
        for (k, e) in pulled.iter().enumerate() {
            assert!((0..from[k]).contains(&eval(e, &at)), "{from:?} {to:?}");
        }
        let mut k = axes.len();
        loop {
            if k == 0 {
                return true;
            }
            k -= 1;
            let a = axes[k];
            at[a as usize] += 1;
            if at[a as usize] < space.extent(a).as_const().unwrap() {
                break;
            }
            at[a as usize] = 0;
        }
    }
}

#[test]
fn reshapes_pull_back() {
    assert!(check(&[6, 4], &[24]));
    assert!(check(&[24], &[2, 3, 4]));
    assert!(check(&[2, 12], &[4, 6])); // splits 4 into (2, 2)
    assert!(check(&[1, 3, 1], &[3]));
    assert!(check(&[2, 3, 4], &[6, 2, 2]));
    assert!(!check(&[6, 4], &[4, 6])); // 6i + j does not divide by 4
    assert!(check(&[], &[1, 1]));
}

#[test]
fn symbols_pull_back() {
    let s = Dim::symbol(Sym(0));
    let to = [s.clone(), Dim::Const(12)];
    let from = [&s * &Dim::Const(3), Dim::Const(4)];
    let (mut space, map) = Space::over(&to);
    let pulled = space.through_reshape(&map, &from, &to, true).unwrap();
    assert_eq!(flatten(&pulled, &from), space.resolve(&flatten(&map, &to)));
}

#[test]
fn bijections_are_permutations_of_the_elements() {
    let (space, map) = Space::over(&dims(&[3, 4]));
    let n = Dim::Const(12);
    let transposed = [map[1].clone(), map[0].clone()];
    assert!(space.is_bijection(&flatten(&map, &dims(&[3, 4])), &n));
    assert!(space.is_bijection(&flatten(&transposed, &dims(&[4, 3])), &n));
    assert!(!space.is_bijection(&flatten(&map[..1], &dims(&[3])), &n));
    assert!(space.is_bijection(&flatten(&map[..1], &dims(&[3])), &Dim::Const(3)));
    assert!(!space.is_bijection(&flatten(&transposed, &dims(&[3, 4])), &n));
}
