#include "mezzo/text/tokenizers/tokenizer.h"

#include <c10/util/Exception.h>

#include "mezzo/text/tokenizers/bert_tokenizer.h"
#include "text/io/json.h"
#include "text/io/read_error.h"
#include "text/tokenizers/pipeline_files.h"
#include "text/tokenizers/pipeline_tokenizer.h"
#include "text/tokenizers/tokenizer_json.h"

namespace mezzo::text {

std::shared_ptr<const Tokenizer> Tokenizer::from_pretrained(const std::filesystem::path& folder) {
  TORCH_CHECK_VALUE(std::filesystem::is_directory(folder), folder.string(),
                    ": is no folder; name a Hugging Face folder, of a model and its tokenizer.",
                    did_you_mean_file(folder));
  refuse_adapter(folder);
  const TokenizerConfig config(folder);
  const std::string name = config.tokenizer_class();
  const bool takes_bert =
      name == "TokenizersBackend" &&
      (is_there(folder / "tokenizer.json") ? is_bert_document(read_json_object(folder / "tokenizer.json"))
                                           : !is_there(folder / "tokenizer.model"));
  if (name == "BertTokenizer" || takes_bert) {
    return std::make_shared<BertTokenizer>(BertTokenizer::from_pretrained(folder));
  }
  return std::make_shared<PipelineTokenizer>(read_pipeline_folder(folder, config, name));
}

std::shared_ptr<const Tokenizer> Tokenizer::from_vocab(const std::filesystem::path& vocab) {
  return std::make_shared<BertTokenizer>(BertTokenizer::from_vocab(vocab));
}

}  // namespace mezzo::text
