#include "bindings.h"
#include "encoder/dropout.h"
#include "encoder/int8_weights.h"
#include "encoder/packed_weights.h"
#include "mezzo/text/data/batching.h"
#include "mezzo/text/inference/inference.h"
#include "mezzo/text/models/export_onnx.h"
#include "mezzo/text/models/model_for_task.h"
#include "mezzo/text/models/pretrained.h"

namespace {

using namespace mezzo;
using namespace mezzo::text;

/// A model and what Python needs to drive it; tensors are shared.
class Model {
 public:
  /// @param is_fresh  with new weights, of which `folder` has none
  Model(const std::string& folder, uint64_t seed, bool per_token, bool is_fresh)
      : model_(make(*ModelConfig::from_file(folder + "/config.json"), per_token)) {
    if (is_fresh) {
      model_->init_weights(seed);
    } else {
      loaded_ = load_pretrained(*model_, folder, seed);
    }
  }

  std::map<std::string, at::Tensor> parameters() const {
    std::map<std::string, at::Tensor> result;
    for (const auto& item : model_->named_parameters()) {
      result[item.key()] = item.value();
    }
    return result;
  }

  at::Tensor forward(std::vector<std::vector<int32_t>> ids,
                     const std::string& batching,
                     int64_t max_length,
                     uint64_t seed,
                     uint32_t step,
                     std::vector<std::vector<int32_t>> token_types) {
    const TokenizedTexts texts{.ids = std::move(ids), .token_types = std::move(token_types)};
    std::vector<int64_t> indices(texts.ids.size());
    std::iota(indices.begin(), indices.end(), 0);
    const auto batch = collate(texts, indices, parse_batching(batching), max_length, model_->config().pad_token_id);
    return model_->forward(batch, {seed, step});
  }

  void save(const std::string& folder) const {
    const auto weights = parameters();
    save_pretrained(model_->config(), {weights.begin(), weights.end()}, folder);
  }

  std::vector<std::string> export_onnx(const std::string& path, const std::string& precision) const {
    return text::export_onnx(*model_, path, parse_precision(precision, at::kCPU), {{"note", "of the tests"}}).inputs;
  }

  void train(bool on) { model_->train(on); }
  void quantize() { model_->quantize(); }
  void set_gradient_checkpointing(bool on) { model_->set_gradient_checkpointing(on); }
  const LoadedWeights& loaded() const { return loaded_; }
  int64_t layer_of(const std::string& parameter) const { return model_->layer_of(parameter); }
  int64_t max_tokens() const { return model_->config().max_tokens(); }
  std::map<std::string, at::Tensor> make_half_copies(const std::string& precision) {
    return model_->make_half_copies(*autocast_dtype(parse_precision(precision, at::kCPU)));
  }

  void pack_weights(const std::string& precision) {
    model_->pack_weights(autocast_dtype(parse_precision(precision, at::kCPU)).value_or(at::kFloat));
  }

  /// Row i is text i's, or the rows of its tokens.
  at::Tensor predict(std::vector<std::vector<int32_t>> ids) {
    return predict_outputs(*model_, {.ids = std::move(ids)}, Precision::kFloat32);
  }

 private:
  static std::shared_ptr<ModelForTask> make(const ModelConfig& config, bool per_token) {
    return make_model(config,
                      {static_cast<int64_t>(config.label_names.size()), per_token ? RowsPer::kToken : RowsPer::kText});
  }

  std::shared_ptr<ModelForTask> model_;
  LoadedWeights loaded_;
};

}  // namespace

void bind_model(py::module_& m) {
  m.def("has_int8_products", [] { return encoder::has_int8_products(at::kCPU); });
  m.def("has_packed_products",
        [] { return encoder::is_packed_weight(encoder::packed_weight(at::ones({8, 8}), at::kFloat)); });
  py::class_<Model>(m, "Model")
      .def(py::init<std::string, uint64_t, bool, bool>(), py::arg("folder"), py::arg("seed") = 0,
           py::arg("per_token") = false, py::arg("fresh") = false)
      .def("save", &Model::save, py::arg("folder"))
      .def("parameters", &Model::parameters)
      .def("forward", &Model::forward, py::arg("ids"), py::arg("batching") = "packed", py::arg("max_length") = 128,
           py::arg("seed") = 0, py::arg("step") = 0, py::arg("token_types") = std::vector<std::vector<int32_t>>())
      .def("predict", &Model::predict, py::arg("ids"))
      .def("make_half_copies", &Model::make_half_copies, py::arg("precision"))
      .def("pack_weights", &Model::pack_weights, py::arg("precision"))
      .def("export_onnx", &Model::export_onnx, py::arg("path"), py::arg("precision") = "fp32")
      .def("layer_of", &Model::layer_of, py::arg("parameter"))
      .def_property_readonly("max_tokens", &Model::max_tokens)
      .def("train", &Model::train)
      .def("quantize", &Model::quantize)
      .def("set_gradient_checkpointing", &Model::set_gradient_checkpointing)
      .def_property_readonly("initialised", [](const Model& self) { return self.loaded().initialised; })
      .def_property_readonly("unused", [](const Model& self) { return self.loaded().unused; });
}
