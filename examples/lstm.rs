//! A tagger of sequences of different lengths.

use kiln::prelude::*;

module!(struct Tagger(options: Recurrent) {
    emb: Embedding = Embedding::with(50, 32, Rows::new().padding_idx(0)),
    rnn: LSTM = LSTM::with(32, 48, options),
    out: Linear = Linear::new(96, 7),
});

impl Forward for Tagger {
    fn forward(&self, ids: Tensor) -> Result<Tensor> {
        let (y, _) = self.rnn.call(self.emb.call(ids));
        Ok(self.out.call(y))
    }
}

fn main() -> Result<()> {
    let model = Tagger::new(Recurrent::new().num_layers(2).batch_first(true).bidirectional(true).dropout(0.1))?;
    let mut opt = Optimizer::new(model.parameters(), RMSprop::new().lr(1e-3))?;
    for step in 0..10 {
        let lengths = Tensor::randint(3, 12, [8]).to_vec::<i64>()?;
        let rows = lengths.iter().map(|n| Tensor::randint(1, 50, [*n]));
        let ids = pad_sequence_with(rows, PadSequence::new().batch_first(true));
        let tags = where_(ids.eq(0), -100, ids.remainder(7));
        let loss = model.call(&ids).transpose(1, 2).cross_entropy(tags);
        opt.zero_grad();
        loss.backward()?;
        opt.step()?;
        println!("{step} {:?} {loss}", ids.shape()?);
    }
    Ok(())
}
