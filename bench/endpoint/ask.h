// SPDX-License-Identifier: Apache-2.0
// The body of a request for a streamed completion.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "endpoint/plan.h"

namespace cistern {

enum class Api : std::uint8_t { kChat, kCompletions };

struct AskOptions {
  Api api = Api::kChat;
  std::string model;
  // What OpenAI's own API knows and no more. Otherwise answers have exactly the planned length.
  bool plain = false;
  // Tells Cistern's connector to neither load nor save for this request; others pass over it.
  bool without_cistern = false;
};

std::string_view PathOf(Api api);  // "/v1/chat/completions"
// Of a conversation without roles, one text is made: messages with an empty line between.
std::string BodyOf(const AskOptions& options, const std::vector<Message>& messages,
                   std::uint32_t answer_tokens);

}  // namespace cistern
