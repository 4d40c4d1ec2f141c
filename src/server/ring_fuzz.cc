// SPDX-License-Identifier: Apache-2.0
// Entries and arguments as a stranger writes them, against a real server and store: every call is answered,
// or the session ends; the node goes on serving the next one.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "server/test_server.h"

namespace cistern::server {
namespace {

struct Target {
  TestServer server;
  std::unique_ptr<RawClient> client;

  void Ready() {
    if (client != nullptr && !client->HungUp()) return;
    client = std::make_unique<RawClient>(RawClient::In(server));
    client->Attach();
  }
};

// A byte of control, then whole entries, then arguments.
void Feed(Target& target, std::span<const std::uint8_t> input) {
  target.Ready();
  if (input.empty()) return;
  RawClient& client = *target.client;
  const std::uint8_t control = input[0];
  input = input.subspan(1);
  const std::size_t entries = std::min<std::size_t>(control % 8, input.size() / sizeof(wire::Submission));
  std::span<const std::uint8_t> arguments = input.subspan(entries * sizeof(wire::Submission));
  std::memcpy(client.page().arguments, arguments.data(),
              std::min<std::size_t>(arguments.size(), wire::kArgumentBytes));
  for (std::size_t i = 0; i < entries; ++i) {
    wire::Submission entry;
    std::memcpy(&entry, input.data() + i * sizeof(entry), sizeof(entry));
    // Past the first gates, or most inputs would end there.
    if (control & 8) {
      entry.op = static_cast<wire::Op>(static_cast<std::uint16_t>(entry.op) % (wire::kLastOp + 2));
      entry.namespace_slot = client.ns.slot;
      entry.incarnation = client.ns.incarnation;
      entry.deadline_ns = 0;  // Push gives it one
      entry.args_offset %= wire::kArgumentBytes / 8;
      entry.args_bytes %= 4096;
      entry.reply_offset %= wire::kArgumentBytes / 8;
      entry.reply_bytes %= 65536;
    }
    client.Push(entry);
  }
  if (control & 16) client.page().submitted += arguments.size();
  if (control & 32) client.page().collected += arguments.size();
  if (control & 64) client.page().touched += arguments.size();
  client.Wake();
  target.server.Until([&] {
    if (client.HungUp()) return true;
    const wire::SessionMemory& page = client.page();
    return page.taken == page.submitted && target.server.counters().in_flight == 0;
  });
  if (!client.HungUp() && (control & 128)) client.page().collected = client.page().completed;
}

}  // namespace
}  // namespace cistern::server

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // One server for all inputs: what an input leaves behind is a stranger's too.
  static auto* target = new cistern::server::Target;
  cistern::server::Feed(*target, {data, size});
  return 0;
}
