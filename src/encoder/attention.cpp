#include "encoder/attention.h"

#include <c10/util/Exception.h>

#include "encoder/registered_class.h"
#include "kernels/operator.h"

namespace mezzo::encoder {

bool AttentionDescription::is_plain() const {
  return !window && !is_causal && !scale && soft_cap == 0 && !rotary.defined() && !relative.defined();
}

AttentionDescription AttentionDescription::checked(const SequenceLayout& layout,
                                                   const at::Device& device,
                                                   int64_t hidden) const {
  const int64_t head_size = hidden / num_heads;
  TORCH_CHECK_VALUE(window.value_or(0) >= 0, "mezzo: a window of attention cannot be ", *window);
  TORCH_CHECK_VALUE(scale.value_or(1) > 0, "mezzo: a scale of attention must be above 0, got ", *scale);
  TORCH_CHECK_VALUE(soft_cap >= 0, "mezzo: a soft cap of scores cannot be ", soft_cap);
  TORCH_CHECK_VALUE(!relative.defined() || (!rotary.defined() && !window && !is_causal && soft_cap == 0),
                    "mezzo: attention takes relative positions, or a rotary table, a window, a causal mask and a soft "
                    "cap, not both");
  TORCH_CHECK_VALUE(
      !rotary.defined() || (rotary.dim() == 2 && rotary.size(0) >= layout.longest() && rotary.size(1) == head_size &&
                            head_size % 2 == 0 && rotary.is_floating_point() && rotary.device() == device),
      "mezzo: a rotary table for heads of ", head_size, " columns and sequences of up to ", layout.longest(),
      " tokens on ", device, " cannot be ", rotary.scalar_type(), rotary.sizes(), " on ", rotary.device());
  AttentionDescription result = *this;
  const RandomKey& key = dropout.key;
  result.dropout = DropoutSite::of(dropout.p, static_cast<int64_t>(key.seed), key.step, key.site,
                                   kernels::if_defined(dropout.step_offset), device);
  result.rotary = rotary.defined() ? rotary.detach() : rotary;
  result.relative = relative.checked(layout, device, hidden);
  return result;
}

AttentionDescription AttentionHolder::with(const std::optional<at::Tensor>& relative_key,
                                           const std::optional<at::Tensor>& relative_query) const {
  AttentionDescription result = description;
  result.relative.key = relative_key.value_or(at::Tensor());
  result.relative.query = relative_query.value_or(at::Tensor());
  return result;
}

AttentionHolderPtr without_tables(AttentionDescription description) {
  description.relative.key = description.relative.query = at::Tensor();
  return c10::make_intrusive<AttentionHolder>(std::move(description));
}

const std::string& attention_schema() {
  using OptionalTensor = std::optional<at::Tensor>;
  static const std::string name = registered_class("Attention", [](const std::string& class_name) {
    torch::class_<AttentionHolder>("mezzo", class_name)
        .def(torch::init([](int64_t num_heads, double dropout, int64_t seed, int64_t step, int64_t site,
                            const OptionalTensor& step_offset, std::optional<int64_t> window, bool is_causal,
                            bool only_first_queries, std::optional<double> scale, double soft_cap,
                            const OptionalTensor& rotary, const OptionalTensor& position_rows) {
               const auto tensor_of = [](const OptionalTensor& tensor) { return tensor.value_or(at::Tensor()); };
               return c10::make_intrusive<AttentionHolder>(AttentionDescription{
                   .num_heads = num_heads,
                   .dropout = {dropout,
                               {static_cast<uint64_t>(seed), static_cast<uint32_t>(step), static_cast<uint32_t>(site)},
                               tensor_of(step_offset)},
                   .window = window,
                   .is_causal = is_causal,
                   .only_first_queries = only_first_queries,
                   .scale = scale,
                   .soft_cap = soft_cap,
                   .rotary = tensor_of(rotary),
                   .relative = {{}, {}, tensor_of(position_rows)}});
             }),
             "",
             {torch::arg("num_heads"), torch::arg("dropout") = 0.0, torch::arg("seed") = 0, torch::arg("step") = 0,
              torch::arg("site") = 0, torch::arg("step_offset") = torch::arg::none(),
              torch::arg("window") = torch::arg::none(), torch::arg("is_causal") = false,
              torch::arg("only_first_queries") = false, torch::arg("scale") = torch::arg::none(),
              torch::arg("soft_cap") = 0.0, torch::arg("rotary") = torch::arg::none(),
              torch::arg("position_rows") = torch::arg::none()});
  });
  return name;
}

}  // namespace mezzo::encoder
