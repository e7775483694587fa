#include "mezzo/text/inference/int8_check.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "mezzo/text/io/atomic_file.h"
#include "text/io/content_hash.h"
#include "text/io/json_file.h"

namespace mezzo::text {
namespace {

constexpr const char* kFile = "int8.json";

std::string hash_of_weights(const std::filesystem::path& folder) { return hash_of_file(folder / "model.safetensors"); }

}  // namespace

void save_int8_check(const Int8Check& check, const std::filesystem::path& folder) {
  nlohmann::ordered_json json = {
      {"metric", check.metric}, {"fp32", check.in_float32}, {"int8", check.in_int8}, {"texts", check.texts}};
  if (check.same_answers) {
    json["same_answers"] = *check.same_answers;
  }
  json["weights"] = hash_of_weights(folder);
  AtomicFile file(folder / kFile);
  file.write(json.dump(2) + "\n");
  file.commit();
}

void remove_int8_check(const std::filesystem::path& folder) { std::filesystem::remove(folder / kFile); }

void require_int8_check(const std::filesystem::path& folder) {
  const auto path = folder / kFile;
  const std::string advice =
      fmt::format("mezzo quantize --model {} --data FILE compares it with fp32 on labelled texts", folder.string());
  TORCH_CHECK_VALUE(std::filesystem::exists(path), path.string(),
                    " is not there: nobody has looked how good the model is in int8; ", advice);
  const auto json = read_json_object(path);
  TORCH_CHECK_VALUE(json.contains("weights") && json["weights"] == hash_of_weights(folder), path.string(),
                    ": it is of other weights than the model has now; ", advice);
}

}  // namespace mezzo::text
