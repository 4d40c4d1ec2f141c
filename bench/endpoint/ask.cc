// SPDX-License-Identifier: Apache-2.0
#include "endpoint/ask.h"

#include <boost/json.hpp>

namespace cistern {
std::string_view PathOf(Api api) { return api == Api::kChat ? "/v1/chat/completions" : "/v1/completions"; }

std::string BodyOf(const AskOptions& options, const std::vector<Message>& messages,
                   std::uint32_t answer_tokens) {
  namespace json = boost::json;
  json::object body = {{"model", options.model},
                       {"stream", true},
                       {"stream_options", {{"include_usage", true}}},
                       {"temperature", 0},
                       {"max_tokens", answer_tokens}};
  if (options.api == Api::kChat) {
    json::array list;
    for (const Message& message : messages) {
      list.push_back(json::object{{"role", message.role}, {"content", message.text}});
    }
    body["messages"] = std::move(list);
  } else {
    std::string prompt;
    for (const Message& message : messages) {
      if (!prompt.empty()) prompt.append("\n\n");
      prompt.append(message.text);
    }
    body["prompt"] = std::move(prompt);
  }
  if (!options.plain) body["ignore_eos"] = true;
  if (options.without_cistern) {
    body["kv_transfer_params"] = {{"cistern.no_load", true}, {"cistern.no_save", true}};
  }
  return json::serialize(body);
}

}  // namespace cistern
