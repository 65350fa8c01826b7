//! A small language model, trained and sampled from.

use kiln::prelude::*;

#[derive(Module)]
struct Block {
    heads: usize,
    ln1: LayerNorm,
    ln2: LayerNorm,
    qkv: Linear,
    proj: Linear,
    mlp: Sequential,
}

impl Block {
    fn new(d: usize, heads: usize) -> Result<Block> {
        let (ln1, ln2) = (LayerNorm::new(d)?, LayerNorm::new(d)?);
        let (qkv, proj) = (Linear::new(d, 3 * d)?, Linear::new(d, d)?);
        let mlp = sequential![
            Linear::new(d, 4 * d),
            GELU::approximate_tanh(),
            Linear::new(4 * d, d)
        ]?;
        Ok(Block {
            heads,
            ln1,
            ln2,
            qkv,
            proj,
            mlp,
        })
    }
}

impl Forward for Block {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let [b, t, d] = x.size()?;
        let qkv = self.qkv.call(self.ln1.call(&x));
        let qkv = qkv
            .view([b, t, 3, self.heads, d / self.heads])
            .permute([2, 0, 3, 1, 4]);
        let a =
            qkv.i(0)
                .scaled_dot_product_attention(qkv.i(1), qkv.i(2), None, 0.0, true, None, false);
        let x = x + self.proj.call(a.transpose(1, 2).reshape([b, t, d]));
        Ok(&x + self.mlp.call(self.ln2.call(&x)))
    }
}

#[derive(Module)]
struct Gpt {
    tok: Embedding,
    pos: Embedding,
    blocks: ModuleList<Block>,
    ln: LayerNorm,
}

impl Forward for Gpt {
    fn forward(&self, ids: Tensor) -> Result<Tensor> {
        let [_, t] = ids.size()?;
        let mut x = self.tok.call(&ids) + self.pos.call(Tensor::arange(0, t, 1));
        for block in &*self.blocks {
            x = block.call(x);
        }
        Ok(self.ln.call(x).linear(&self.tok.weight, None))
    }
}

fn main() -> Result<()> {
    let blocks: Result<_> = (0..2).map(|_| Block::new(64, 4)).collect();
    let (tok, pos) = (Embedding::new(96, 64)?, Embedding::new(64, 64)?);
    let model = Gpt {
        tok,
        pos,
        blocks: blocks?,
        ln: LayerNorm::new(64)?,
    };
    let mut opt = Optimizer::new(model.parameters(), AdamW::new().lr(3e-4))?;
    for step in 0..10 {
        let ids = Tensor::randint(0, 96, [4, 33]);
        let scores = model.call(ids.i((.., ..-1))).flatten(0, 1);
        let loss = scores.cross_entropy(ids.i((.., 1..)).flatten(0, 1));
        opt.zero_grad();
        loss.backward()?;
        opt.step()?;
        println!("{step} {loss}");
    }
    let mut ids = Tensor::zeros([1, 1], DType::I64);
    for _ in 0..20 {
        let p = no_grad(|| (model.call(&ids).i((.., -1)) / 0.8).softmax(-1));
        ids = cat([ids, p.multinomial(1, false)], 1);
    }
    println!("{ids}");
    Ok(())
}
