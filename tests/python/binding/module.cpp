#include "bindings.h"

PYBIND11_MODULE(_mezzo, m) {
  bind_agreement(m);
  bind_amp(m);
  bind_custom_function(m);
  bind_ddp(m);
  bind_distributed(m);
  bind_files(m);
  bind_grad_scaler(m);
  bind_finite(m);
  bind_half_compute(m);
  bind_known_fields(m);
  bind_memory(m);
  bind_model(m);
  bind_optim(m);
  bind_recipes(m);
  bind_report(m);
  bind_sampler(m);
  bind_zero(m);
}
