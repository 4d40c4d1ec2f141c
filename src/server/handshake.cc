// SPDX-License-Identifier: Apache-2.0
#include "server/handshake.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "base/format.h"

namespace cistern::server {
namespace {

// What stands first in the hello of every version.
struct Prologue {
  std::uint32_t magic = 0;
  wire::MessageKind kind = wire::MessageKind::kHello;
  std::uint32_t version = 0;
};

}  // namespace

Result<HelloText> ReadHello(std::span<const std::byte> message) {
  Prologue prologue;
  if (message.size() < sizeof(prologue))
    return Error(Code::kInvalid, Text("a hello of ", message.size(), " bytes: this is no Cistern client"));
  std::memcpy(&prologue, message.data(), sizeof(prologue));
  if (prologue.magic != wire::kProtocolMagic)
    return Error(Code::kMismatch, Text("a hello that begins with ", Hex(prologue.magic), ", not with ",
                                       Hex(wire::kProtocolMagic), ": this is no Cistern client"));
  if (prologue.kind != wire::MessageKind::kHello)
    return Error(Code::kMismatch, Text("a first message of kind ", static_cast<std::uint32_t>(prologue.kind),
                                       ", a client begins with kind ",
                                       static_cast<std::uint32_t>(wire::MessageKind::kHello), ", the hello"));
  if (prologue.version < wire::kOldestProtocolVersion || prologue.version > wire::kProtocolVersion)
    return Error(Code::kMismatch,
                 Text("the client speaks protocol version ", prologue.version, ", this node ",
                      wire::kOldestProtocolVersion == wire::kProtocolVersion
                          ? Text(wire::kProtocolVersion)
                          : Text(wire::kOldestProtocolVersion, " to ", wire::kProtocolVersion),
                      ": bring the older of the two up to the other's release"));
  wire::Hello hello;
  if (message.size() != sizeof(hello))
    return Error(Code::kInvalid, Text("a hello of ", message.size(), " bytes, version ", prologue.version,
                                      " has ", sizeof(hello)));
  std::memcpy(&hello, message.data(), sizeof(hello));
  const auto end = std::find(hello.tenant.begin(), hello.tenant.end(), '\0');
  if (end == hello.tenant.end()) return Error(Code::kInvalid, "a hello whose tenant does not end");
  return HelloText{.tenant = std::string(hello.tenant.begin(), end),
                   .owner = hello.owner,
                   .staging_bytes = hello.staging_bytes};
}

Result<SessionMessage> ReadSessionMessage(std::span<const std::byte> message) {
  wire::MoreStaging asked;
  if (message.size() != sizeof(asked))
    return Error(Code::kInvalid,
                 Text("a message of ", message.size(), " bytes, known is one of ", sizeof(asked)));
  std::memcpy(&asked, message.data(), sizeof(asked));
  if (asked.magic == wire::kProtocolMagic && asked.kind == wire::MessageKind::kMoreStaging) return asked;
  if (asked.magic == wire::kProtocolMagic && asked.kind == wire::MessageKind::kReturnStaging)
    return wire::ReturnStaging{.area = asked.bytes};
  return Error(Code::kInvalid, Text("a message of magic ", Hex(asked.magic), " and kind ",
                                    static_cast<std::uint32_t>(asked.kind), ", a session sends magic ",
                                    Hex(wire::kProtocolMagic), " and kind ",
                                    static_cast<std::uint32_t>(wire::MessageKind::kMoreStaging), " or ",
                                    static_cast<std::uint32_t>(wire::MessageKind::kReturnStaging)));
}

void PrepareToRead(int socket) {
  const int yes = 1;
  static_cast<void>(setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &yes, sizeof(yes)));
}

// Each message has its sender's credentials, for which there is room, and for nothing else. Peeking lets go
// of no descriptor: the message that stays has them too.
Unread NextIn(int socket) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred))> credentials;
  std::byte byte;
  iovec bytes{.iov_base = &byte, .iov_len = 1};
  msghdr header{};
  ssize_t got;
  do {
    header = {};
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    header.msg_control = credentials.data();
    header.msg_controllen = credentials.size();
    got = recvmsg(socket, &header, MSG_PEEK | MSG_DONTWAIT);
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));  // a reset is told once
  if (got < 0) return Unread::kNothing;
  if ((header.msg_flags & MSG_CTRUNC) != 0) return Unread::kDescriptors;
  return got == 0 && header.msg_controllen == 0 ? Unread::kEnd : Unread::kMessage;
}

int SendMessage(int socket, std::span<const std::byte> message, std::span<const int> descriptors) {
  CISTERN_ASSERT(descriptors.size() <= wire::kMaxDescriptors);
  iovec bytes{.iov_base = const_cast<std::byte*>(message.data()), .iov_len = message.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(wire::kMaxDescriptors * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  if (!descriptors.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent < 0 ? errno : 0;
}

bool HasUntaken(int socket) {
  int bytes = 0;
  return ioctl(socket, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

void SetText(std::span<char> field, std::string_view text) {
  const std::size_t length = std::min(text.size(), field.size() - 1);
  // What quotes a name with a zero byte does not end there.
  std::ranges::replace_copy(text.substr(0, length), field.begin(), '\0', '?');
  std::fill(field.begin() + static_cast<std::ptrdiff_t>(length), field.end(), '\0');
}

void Refuse(int socket, const Status& why) {
  wire::Welcome welcome;
  welcome.code = static_cast<std::uint32_t>(why.code());
  SetText(welcome.message, why.message());
  SendMessage(socket, std::as_bytes(std::span(&welcome, 1)));
}

}  // namespace cistern::server
