//! Creation, random numbers, reading and printing.

use super::rows;
use kiln_tensor::{
    Combinations, DType, Error, Indexing, Multinomial, PrintOptions, Result, Tensor,
    cartesian_prod, default_dtype, draw_seed, empty, get_rng_state, manual_seed, meshgrid,
    meshgrid_with, normal, ones, printoptions, rand, randn, set_printoptions, set_rng_state,
    with_default_dtype, with_seed, zeros,
};

rows! {
    (x: &Tensor, y: &Tensor, bytes: &[u8], dtype: DType, options: PrintOptions, p: f64);
    "torch.tensor" = { Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]) } "the dtype is that of the Rust numbers";
    "torch.scalar_tensor" = { Tensor::scalar(1.0f32) };
    "torch.as_tensor" = { Tensor::from_slice(&[1i64, 2, 3, 4], [2, 2]) } "copies";
    "torch.frombuffer" = { Tensor::from_bytes(bytes, dtype, [2, 3]) } "copies little-endian bytes";
    "file.readinto(torch.empty(2, 3).numpy())" = { Tensor::filled(dtype, [2, 3], |to| { to.copy_from_slice(bytes); Ok::<_, Error>(()) })? };
    "torch.zeros" = { zeros([2, 3]) } "of the default dtype";
    "torch.zeros(dtype=)", "Tensor.new_zeros" = { Tensor::zeros([2, 3], dtype) } "where there is no short form below, the dtype must be given";
    "torch.empty" = { empty([2, 3]) } "zeros";
    "torch.empty(dtype=)", "Tensor.new_empty" = { Tensor::empty([2, 3], dtype) } "zeros";
    "torch.ones" = { ones([2, 3]) };
    "torch.ones(dtype=)", "Tensor.new_ones" = { Tensor::ones([2, 3], dtype) };
    "torch.full", "Tensor.new_full" = { Tensor::full([2, 3], 7, dtype) };
    "torch.zeros_like" = { x.zeros_like() };
    "torch.empty_like" = { x.empty_like() } "zeros";
    "torch.ones_like" = { x.ones_like() };
    "torch.full_like" = { x.full_like(7) };
    "torch.eye" = { Tensor::eye(3, dtype) };
    "torch.eye(m=)" = { Tensor::eye([3, 4], dtype) };
    "torch.arange" = { Tensor::arange(0, 10, 2) } "start, end and step: i64 for integers, f32 for floats";
    "torch.arange(dtype=)" = { Tensor::arange_dtype(0, 10, 2, dtype) };
    "torch.linspace" = { Tensor::linspace(0, 1, 11, dtype) };
    "torch.logspace" = { Tensor::logspace(0, 2, 3, 10.0, dtype) };
    "torch.tril_indices" = { Tensor::tril_indices(3, 3) } "i64";
    "torch.tril_indices(offset=)" = { Tensor::tril_indices_with(3, 3, 1) };
    "torch.triu_indices" = { Tensor::triu_indices(3, 3) } "i64";
    "torch.triu_indices(offset=)" = { Tensor::triu_indices_with(3, 3, 1) };
    "torch.meshgrid" = { meshgrid(&[x, y]) };
    "torch.meshgrid(indexing=)" = { meshgrid_with(&[x, y], Indexing::Xy) };
    "torch.cartesian_prod" = { cartesian_prod(&[x, y]) };
    "torch.combinations" = { x.combinations(2) };
    "torch.combinations(with_replacement=)" = { x.combinations(Combinations::new(2).with_replacement(true)) };
    "torch.get_default_dtype" = { default_dtype() };
    "torch.set_default_dtype" = { with_default_dtype(dtype, || randn([2, 3])) } "inside, on this thread; layers too";
    "torch.manual_seed" = { manual_seed(0) } "not PyTorch's numbers";
    "torch.get_rng_state" = { get_rng_state() } "seed and offset";
    "torch.set_rng_state" = { set_rng_state([0, 7]) };
    "torch.random.fork_rng" = { with_seed(0, || x.dropout(0.5)) } "inside, numbers come from this seed, on this thread alone";
    "torch.empty((), dtype=torch.int64).random_().item()" = { draw_seed() } "a seed for random numbers made elsewhere";
    "torch.rand" = { rand([2, 3]) };
    "torch.rand(dtype=)" = { Tensor::rand([2, 3], dtype) };
    "torch.randn" = { randn([2, 3]) };
    "torch.randn(dtype=)" = { Tensor::randn([2, 3], dtype) };
    "torch.randint" = { Tensor::randint(0, 10, [2, 3]) };
    "torch.randperm" = { Tensor::randperm(10) };
    "torch.rand_like" = { x.rand_like() };
    "torch.randn_like" = { x.randn_like() };
    "torch.randint_like" = { x.randint_like(0, 10) };
    "torch.bernoulli" = { x.bernoulli() };
    "torch.bernoulli(p=)" = { x.bernoulli_with(p) };
    "torch.multinomial" = { x.multinomial(3) };
    "torch.multinomial(replacement=)" = { x.multinomial(Multinomial::new(3).replacement(true)) };
    "torch.normal" = { normal(x, 1.0) };
    "Tensor.item" = { x.item::<f32>()? } "a `T` of another dtype, too, where that loses nothing in kind";
    "Tensor.tolist", "Tensor.numpy" = { x.to_vec::<f32>()? } "row-major; `to_ndarray` with the feature `ndarray`";
    "bytes(Tensor.numpy())" = { x.to_bytes()? };
    "memoryview(Tensor.numpy())" = { x.with_bytes(<[u8]>::len)? } "without a copy where they are on the host";
    "Tensor.untyped_storage().nbytes" = { x.memory_bytes() } "what its values take now: none before they are computed";
    "Tensor.element_size" = { x.element_size() };
    "Tensor.nbytes" = { x.nbytes()? };
    "torch.set_printoptions" = { set_printoptions(options) };
    "torch.get_printoptions" = { printoptions() };
    "Tensor.__repr__" = { format!("{x}") };
}
