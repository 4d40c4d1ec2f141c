// SPDX-License-Identifier: Apache-2.0
// A message with descriptors, also with more than a program of Cistern sends.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace cistern {

// 0, or the errno of what kept it from being sent.
inline int SendDescriptors(int socket, std::span<const std::byte> message, std::span<const int> descriptors) {
  iovec bytes{.iov_base = const_cast<std::byte*>(message.data()), .iov_len = message.size()};
  std::vector<std::byte> control(CMSG_SPACE(descriptors.size_bytes()));
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
  std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  return sendmsg(socket, &header, MSG_NOSIGNAL) < 0 ? errno : 0;
}

}  // namespace cistern
