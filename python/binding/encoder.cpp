// torch.classes.mezzo.Encoder: the encoder of a model of transformers, on that model's own parameters. mezzo.optimize
// drives it.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/custom_class.h>

#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "mezzo/text/data/batching.h"
#include "mezzo/text/models/model_for_task.h"
#include "text/models/model_families.h"
#include "text/models/modules.h"

// B texts, S tokens of a padded text, T rows of a packed batch, H hidden size.

namespace mezzo::text {
namespace {

std::shared_ptr<ModelForTask> model_of(const ModelConfig& config) {
  // With a head for tokens BERT has no pooler. The head is not used.
  return make_model(config, {std::ssize(config.label_names), RowsPer::kToken});
}

/// A hash of some elements of a weight and of their address. It tells whether `weight.data` was written to, which
/// leaves the weight's version as it is.
uint64_t fingerprint(const at::Tensor& weight) {
  constexpr int64_t kElements = 32;
  const auto* bytes = static_cast<const std::byte*>(weight.const_data_ptr());
  const int64_t size = weight.is_non_overlapping_and_dense() ? weight.numel() : 1;
  auto hash = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(bytes));
  for (int64_t i = 0; i < size; i += (size / kElements) | 1) {  // an odd step visits all columns
    uint64_t element = 0;
    std::memcpy(&element, bytes + i * weight.element_size(), weight.element_size());
    hash = (hash ^ element) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 32U;
  }
  return hash;
}

class PythonEncoder : public torch::CustomClassHolder {
 public:
  explicit PythonEncoder(const std::string& config)
      : config_(read_config(ConfigFields(config, "the model's config"))), model_(model_of(*config_)) {
    for (const auto& item : model_->encoder().named_modules()) {
      if (auto* module = dynamic_cast<Parametrized*>(item.value().get())) modules_.emplace(item.key(), module);
    }
  }

  std::vector<std::string> parameter_names() const { return model_->encoder().named_parameters().keys(); }
  int64_t max_tokens() const { return config_->max_tokens(); }
  bool reads_token_types() const { return model_->reads_token_types(); }

  /// Parameters `name`.lora_A and `name`.lora_B, to be adopted.
  void add_lora(const std::string& name, int64_t rank, double scale, double dropout) {
    const auto module = modules_.find(name);
    auto* const dense = module == modules_.end() ? nullptr : dynamic_cast<Dense*>(module->second);
    TORCH_CHECK_VALUE(dense != nullptr, name, " is not one of the model's linear layers");
    dense->add_lora(rank, scale, dropout, kLoraSites + static_cast<uint32_t>(num_lora_++));
  }

  void adopt(const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors) {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < names.size(); ++i) {
      const size_t dot = names[i].rfind('.');
      modules_.at(names[i].substr(0, dot))->adopt(names[i].substr(dot + 1), tensors[i]);
    }
    const auto device = tensors.front().device();
    for (at::Tensor& buffer : model_->encoder().buffers()) buffer.set_data(buffer.to(device));
    packed_dtype_.reset();
  }

  /// @param ids  [B, S]
  /// @param mask  [B, S], 0 for padding; or none
  /// @return tokens of each text, int64 [B] on the CPU; and why the batch cannot be packed, or nothing
  std::tuple<at::Tensor, std::string> lengths(const at::Tensor& ids, const std::optional<at::Tensor>& mask) const {
    const bool is_trained = at::GradMode::is_enabled();
    const auto pads = is_trained ? ids.eq(config_->pad_token_id) : at::Tensor();
    if (!mask) {
      const bool has_pads = is_trained && pads.any().item<bool>();
      return {at::full({ids.size(0)}, ids.size(1), at::kLong), has_pads ? kHasPads : ""};
    }
    const auto seen = mask->ne(0);
    const auto lengths = seen.sum(1);
    const auto expected = at::arange(ids.size(1), lengths.options()).lt(lengths.unsqueeze(1));
    std::vector<at::Tensor> found{lengths, seen.ne(expected).any().logical_or(lengths.eq(0).any()).view(1)};
    if (is_trained) found.push_back(pads.logical_and_(seen).any().view(1));
    const auto all = at::cat(found).to(at::kCPU);  // the one wait for a device
    const auto* flags = all.const_data_ptr<int64_t>() + ids.size(0);
    return {all.narrow(0, 0, ids.size(0)), flags[0] != 0                 ? kNotRightPadding
                                           : is_trained && flags[1] != 0 ? kHasPads
                                                                         : ""};
  }

  /// @param ids, token_types  [B, S]
  /// @param lengths  as lengths() gives them
  /// @param only_first  whether no row but each text's first is needed
  /// @param seed  keys dropout, if `training`
  /// @return [B, S, H], with zeros for padding; with only_first [B, 1, H]
  at::Tensor forward(const at::Tensor& ids,
                     const std::optional<at::Tensor>& token_types,
                     const at::Tensor& lengths,
                     bool only_first,
                     bool training,
                     bool checkpointing,
                     int64_t seed) {
    const std::lock_guard lock(mutex_);
    if (training != model_->is_training()) model_->train(training);
    model_->set_gradient_checkpointing(checkpointing);
    prepare_weights();

    const int64_t texts = ids.size(0), columns = ids.size(1), tokens = lengths.sum().item<int64_t>();
    const int64_t rows = packed_rows(tokens);
    auto places = at::zeros({rows}, at::kLong), positions = at::zeros({rows}, at::kLong);
    PackedBatch batch;
    batch.seqlens = lengths.to(at::kInt);
    batch.cu_seqlens = at::zeros({texts + 1}, at::kInt);
    batch.num_tokens = tokens;
    auto* const ends = batch.cu_seqlens.mutable_data_ptr<int32_t>();
    auto *place = places.mutable_data_ptr<int64_t>(), *position = positions.mutable_data_ptr<int64_t>();
    for (int64_t b = 0; b < texts; ++b) {
      const int64_t count = lengths.const_data_ptr<int64_t>()[b];
      ends[b + 1] = ends[b] + static_cast<int32_t>(count);
      for (int64_t i = 0; i < count; ++i) {
        *place++ = b * columns + i;
        *position++ = i;
      }
    }
    places = places.to(ids.device());
    const auto packed = [&](const at::Tensor& padded) {
      return padded.reshape(-1).index_select(0, places).to(at::kLong);
    };
    batch.input_ids = packed(ids);
    batch.positions = positions.to(ids.device());
    if (token_types) batch.token_types = packed(token_types->expand_as(ids));

    const DropoutSeed random{static_cast<uint64_t>(seed)};
    const auto x = model_->encoder().forward(batch, random, only_first ? RowsPer::kText : RowsPer::kToken);
    if (only_first) return x.unsqueeze(1);
    const auto padded = at::zeros({texts * columns, x.size(1)}, x.options());
    return padded.index_copy(0, places.narrow(0, 0, tokens), x.narrow(0, 0, tokens)).view({texts, columns, x.size(1)});
  }

 private:
  static constexpr const char* kHasPads =
      "input_ids has padding that attention_mask does not mask, and PyTorch does not train the embedding of padding";
  static constexpr const char* kNotRightPadding =
      "attention_mask masks a whole text, or positions that are not on the right";

  /// Packs the layers' weights for prediction on a CPU, and drops those copies for all else.
  void prepare_weights() {
    const auto dense = layers_weights();
    const auto& first = dense.front()->weight;
    const auto dtype =
        at::autocast::is_autocast_enabled(at::kCPU) ? at::autocast::get_autocast_dtype(at::kCPU) : first.scalar_type();
    const bool packs = first.is_cpu() && !model_->is_training() && !at::GradMode::is_enabled() && dtype != at::kDouble;
    if (!packs) {
      if (packed_dtype_) model_->unpack_weights();
      packed_dtype_.reset();
      return;
    }
    std::vector<uint64_t> prints;
    for (const Dense* layer : dense) prints.push_back(fingerprint(layer->weight));
    if (packed_dtype_ == dtype && prints == fingerprints_)
      return;  // a weight of another version is packed by its layer
    const c10::InferenceMode tracks_versions(false);
    const at::NoGradGuard no_grad;
    packed_dtype_.reset();  // should memory run out
    model_->pack_weights(dtype);
    packed_dtype_ = dtype;
    fingerprints_ = std::move(prints);
  }

  std::vector<Dense*> layers_weights() const {
    std::vector<Dense*> found;
    for (const auto& [name, module] : modules_) {
      if (auto* dense = dynamic_cast<Dense*>(module)) found.push_back(dense);
    }
    return found;
  }

  std::unique_ptr<ModelConfig> config_;
  std::shared_ptr<ModelForTask> model_;
  std::map<std::string, Parametrized*> modules_;
  std::optional<at::ScalarType> packed_dtype_;
  std::vector<uint64_t> fingerprints_;
  int64_t num_lora_ = 0;
  std::mutex mutex_;
};

TORCH_LIBRARY_FRAGMENT(mezzo, m) {
  m.class_<PythonEncoder>("Encoder")
      .def(torch::init<std::string>())
      .def("parameter_names", &PythonEncoder::parameter_names)
      .def("max_tokens", &PythonEncoder::max_tokens)
      .def("reads_token_types", &PythonEncoder::reads_token_types)
      .def("add_lora", &PythonEncoder::add_lora)
      .def("adopt", &PythonEncoder::adopt)
      .def("lengths", &PythonEncoder::lengths)
      .def("forward", &PythonEncoder::forward);
}

}  // namespace
}  // namespace mezzo::text
