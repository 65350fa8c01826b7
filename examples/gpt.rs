//! A small language model, trained and sampled from.

use kiln::prelude::*;

module!(struct Block(d: usize, heads: usize) {
    heads: usize,
    ln1: LayerNorm = LayerNorm::new(d),
    ln2: LayerNorm = LayerNorm::new(d),
    qkv: Linear = Linear::new(d, 3 * d),
    proj: Linear = Linear::new(d, d),
    mlp: Sequential = sequential![Linear::new(d, 4 * d), GELU::approximate_tanh(), Linear::new(4 * d, d)],
});

impl Forward for Block {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let [b, t, d] = x.size()?;
        let qkv = self.qkv.call(self.ln1.call(&x)).view([b, t, 3, self.heads, d / self.heads]);
        let [q, k, v] = [0, 1, 2].map(|i| qkv.permute([2, 0, 3, 1, 4]).i(i));
        let a = q.scaled_dot_product_attention_with(k, v, Attention::new().is_causal(true));
        let x = x + self.proj.call(a.transpose(1, 2).reshape([b, t, d]));
        Ok(&x + self.mlp.call(self.ln2.call(&x)))
    }
}

module!(struct Gpt(vocab: usize, t: usize, d: usize, heads: usize, layers: usize) {
    tok: Embedding = Embedding::new(vocab, d),
    pos: Embedding = Embedding::new(t, d),
    blocks: ModuleList<Block> = (0..layers).map(|_| Block::new(d, heads)).collect::<Result<_>>(),
    ln: LayerNorm = LayerNorm::new(d),
});

impl Forward for Gpt {
    fn forward(&self, ids: Tensor) -> Result<Tensor> {
        let [_, t] = ids.size()?;
        let mut x = self.tok.call(&ids) + self.pos.call(Tensor::arange(0, t, 1));
        for block in self.blocks.iter() {
            x = block.call(x);
        }
        Ok(self.ln.call(x).linear(&self.tok.weight))
    }
}

fn main() -> Result<()> {
    let model = Gpt::new(96, 64, 64, 4, 2)?;
    let mut opt = Optimizer::new(model.parameters(), AdamW::new().lr(3e-4))?;
    for step in 0..10 {
        let ids = Tensor::randint(0, 96, [4, 33]);
        let scores = model.call(ids.i((.., ..-1))).flatten((0, 1));
        let loss = scores.cross_entropy(ids.i((.., 1..)).flatten((0, 1)));
        opt.zero_grad();
        loss.backward()?;
        opt.step()?;
        println!("{step} {loss}");
    }
    let mut ids = Tensor::zeros([1, 1], DType::I64);
    for _ in 0..20 {
        let p = no_grad(|| (model.call(&ids).i((.., -1)) / 0.8).softmax(-1));
        ids = cat([ids, p.multinomial(1)], 1);
    }
    println!("{ids}");
    Ok(())
}
