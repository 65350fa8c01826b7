//! Functions of modules and their parameters: `torch.nn.utils`, `torch.optim.swa_utils`, `torch.func.functional_call`.

use super::rows;
use kiln_nn::optim::{Optimizer, SWALR, Scheduler};
use kiln_nn::*;
use kiln_tensor::{PadSequence, Result, Tensor};

rows! {
    (x: &Tensor, y: &Tensor, model: &Linear, average: &AveragedModel<Linear>, lstm: &LSTM, packed: &PackedSequence, lengths: &Tensor, optimizer: &mut Optimizer);
    "torch.func.functional_call" = { functional_call(model, [("weight", x)], y) } "of all names, or of some; what the call assigns is dropped";
    "torch.func.functional_call(strict=True)" = { functional_call_with(model, [("weight", x)], y, FunctionalCall::new().strict(true)) } "names that are not there are errors always";
    "torch.nn.utils.parameters_to_vector" = { parameters_to_vector(model.parameters()) };
    "torch.nn.utils.vector_to_parameters" = { vector_to_parameters(x, model.parameters())? };
    "torch.optim.swa_utils.AveragedModel" = { AveragedModel::new(model)? };
    "torch.optim.swa_utils.AveragedModel(multi_avg_fn=, use_buffers=)", "torch.optim.swa_utils.get_ema_avg_fn", "torch.optim.swa_utils.get_ema_multi_avg_fn" = { AveragedModel::new(model)?.avg_fn(get_ema_avg_fn(0.999)).use_buffers(true) } "or a function of average, parameter and count";
    "torch.optim.swa_utils.get_swa_avg_fn", "torch.optim.swa_utils.get_swa_multi_avg_fn" = { get_swa_avg_fn() } "the default";
    "AveragedModel.update_parameters" = { average.update_parameters(model)? } "in a compiled step too";
    "torch.optim.swa_utils.SWALR" = { Scheduler::new(optimizer, SWALR::new(0.05).anneal_epochs(5))? };
    "torch.optim.swa_utils.update_bn" = { update_bn([Ok(x)], model, |x: &Tensor| model.call(x))? };
    "torch.nn.utils.parametrizations.weight_norm" = { weight_norm(Linear::new(3, 2))? };
    "torch.nn.utils.parametrizations.weight_norm(name, dim)" = { register_parametrization(model, "weight", WeightNorm::new().dim(None))? } "of a layer that is there, such as one of `model.modules()`";
    "torch.nn.utils.parametrizations.spectral_norm" = { spectral_norm(Conv2d::new(3, 8, 3))? };
    "torch.nn.utils.parametrizations.spectral_norm(name, n_power_iterations)" = { register_parametrization(model, "weight", SpectralNorm::new().n_power_iterations(3))? };
    "torch.nn.utils.parametrize.register_parametrization" = { register_parametrization(model, "weight", |w: &Tensor| w.triu() + w.triu_with(1).t())? } "one a parameter; its originals are listed in place of it, but no modules";
    "torch.nn.utils.parametrize.remove_parametrizations", "torch.nn.utils.remove_weight_norm", "torch.nn.utils.remove_spectral_norm" = { remove_parametrizations(model, "weight", true)? };
    "torch.nn.utils.parametrize.is_parametrized" = { is_parametrized(model) };
    "torch.nn.utils.rnn.PackedSequence" = { PackedSequence { data: x, lengths } } "steps stay padded: `data` is `[l, n, ..]`";
    "torch.nn.utils.rnn.pack_padded_sequence" = { pack_padded_sequence(x, lengths) } "lengths are a tensor, in any order; they may change from run to run of a compiled function";
    "torch.nn.utils.rnn.pack_padded_sequence(batch_first=)" = { pack_padded_sequence_with(x, lengths, PackPaddedSequence::new().batch_first(true)) };
    "torch.nn.utils.rnn.pack_sequence" = { pack_sequence([x, y]) };
    "calling a recurrent layer with packed sequences" = { lstm.call(packed) } "the same type comes back";
    "torch.nn.utils.rnn.pad_packed_sequence" = { pad_packed_sequence(packed) } "as long as what was packed";
    "torch.nn.utils.rnn.pad_packed_sequence(batch_first=, padding_value=)" = { pad_packed_sequence_with(packed, PadSequence::new().batch_first(true).padding_value(-1.0)) };
    "torch.nn.utils.rnn.unpack_sequence" = { unpack_sequence(packed)? };
    "torch.nn.utils.rnn.unpad_sequence" = { unpad_sequence(x, lengths)? };
}
