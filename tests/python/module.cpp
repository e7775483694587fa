#include "bindings.h"

PYBIND11_MODULE(_mezzo, m) {
  bind_amp(m);
  bind_text_tokenizer(m);
}
