#include "mezzo/text/models/export_onnx.h"

#include <c10/util/Exception.h>

#include "text/models/graph_parts.h"

namespace mezzo::text {

OnnxFile export_onnx(const ModelForTask& model,
                     const std::filesystem::path& file,
                     Precision precision,
                     const std::map<std::string, std::string>& metadata) {
  TORCH_CHECK_VALUE(precision != Precision::kBFloat16,
                    "export_onnx: precision must be fp32 or fp16; few programs that run ONNX know bf16");
  TORCH_CHECK_VALUE(model.parameters().front().is_cpu(), "export_onnx: the model must be on the CPU");
  std::map<const void*, std::string> names;
  for (const auto& item : model.named_parameters()) names[item.value().const_data_ptr()] = item.key();
  onnx::Graph graph(precision == Precision::kFloat16 ? at::kHalf : at::kFloat, std::move(names));
  const onnx::Dim batch{.name = "batch"}, sequence{.name = "sequence"}, outputs{.size = model.head().num_outputs};
  OnnxFile written{.inputs = {"input_ids", "attention_mask"}, .opset = onnx::kOpset};
  if (model.reads_token_types()) written.inputs.emplace_back("token_type_ids");
  for (const std::string& name : written.inputs) graph.input(name, {batch, sequence});
  const onnx::Value length = graph.gather(graph.node("Shape", {"input_ids"}), graph.integer(1), 0);
  const GraphTexts texts{.graph = graph,
                         .input_ids = "input_ids",
                         .attention_mask = "attention_mask",
                         .token_type_ids = written.inputs.size() > 2 ? "token_type_ids" : "",
                         .positions = graph.node("Range", {graph.integer(0), length, graph.integer(1)})};
  const onnx::Value logits = model.add_to(texts);
  if (model.head().rows == RowsPer::kToken) {
    graph.output("logits", logits, {batch, sequence, outputs});
  } else {
    graph.output("logits", logits, {batch, outputs});
  }
  written.bytes = graph.save(file, metadata);
  return written;
}

}  // namespace mezzo::text
