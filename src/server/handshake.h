// SPDX-License-Identifier: Apache-2.0
// The messages over the socket: reading what a stranger sent, and answering with descriptors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "cistern/options.h"
#include "cistern/status.h"
#include "wire/protocol.h"

namespace cistern::server {

struct HelloText {
  std::string tenant;
  OwnerToken owner{};
  std::uint64_t staging_bytes = 0;
};

// What a hello says. kMismatch: another program, or a version that this node does not work with (both are
// named); kInvalid: a broken hello. Reads inside `message` only.
Result<HelloText> ReadHello(std::span<const std::byte> message);
// What an open session sends over its socket.
using SessionMessage = std::variant<wire::MoreStaging, wire::ReturnStaging>;
Result<SessionMessage> ReadSessionMessage(std::span<const std::byte> message);

// Before anything of a client's connection is read: an end then differs from a message without bytes.
void PrepareToRead(int socket);
enum class Unread : std::uint8_t {
  kNothing,
  kMessage,
  kDescriptors,  // with a message: to be left there, for the node would let go of them (server/closer.h)
  kEnd,          // it hung up, and nothing is left
};
inline constexpr const char* kNoDescriptors = "a message with a descriptor: clients send none";
// What comes next in a connection, and stays there.
Unread NextIn(int socket);

// Sends one message with descriptors, and never waits: the errno of what kept it from that, else 0. What
// keeps descriptors from being sent may leave a message without any its way.
int SendMessage(int socket, std::span<const std::byte> message, std::span<const int> descriptors = {});

// Whether the other side has messages before it that it has not received. Descriptors in them count as this
// process's user's until it does, or closes its end: past the limit of open files the kernel lets that user
// send none to anybody.
bool HasUntaken(int socket);

// Copies `text` into a zero-terminated field, cut where it ends.
void SetText(std::span<char> field, std::string_view text);

// Tells a client why it may not come in.
void Refuse(int socket, const Status& why);

}  // namespace cistern::server
