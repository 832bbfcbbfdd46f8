package clag

import (
	"fmt"
	"net/netip"
	"strings"
)

// address returns a target as gRPC has it: "unix:PATH", or "host:port".
func address(target string) string {
	if strings.HasPrefix(target, "/") {
		return "unix:" + target
	}
	return target
}

// isLocal says whether what is sent to a target stays on this machine: a Unix socket, "localhost"
// or a loopback address. Other names count as elsewhere, wherever they lead now: who answers for a
// name can change.
func isLocal(target string) bool {
	for _, scheme := range []string{"/", "unix:", "unix-abstract:"} {
		if strings.HasPrefix(target, scheme) {
			return true
		}
	}
	for _, scheme := range []string{"dns:", "passthrough:", "ipv4:", "ipv6:"} {
		target = strings.TrimPrefix(target, scheme)
	}
	target = target[strings.LastIndex(target, "/")+1:]
	for _, one := range strings.Split(target, ",") {
		host := strings.ToLower(hostOf(one))
		ip, err := netip.ParseAddr(host)
		if host != "localhost" && (err != nil || !ip.Unmap().IsLoopback()) {
			return false
		}
	}
	return true
}

// hostOf returns the host of "host:port", "[v6]:port", "host" or "v6".
func hostOf(address string) string {
	if rest, ok := strings.CutPrefix(address, "["); ok {
		host, _, _ := strings.Cut(rest, "]")
		return host
	}
	if strings.Count(address, ":") == 1 {
		host, _, _ := strings.Cut(address, ":")
		return host
	}
	return address
}

// checkTarget refuses an empty target, and a token that would cross a network in plain text.
func checkTarget(target, token string, encrypted bool) error {
	if target == "" {
		return fmt.Errorf("clag: the address of the server is empty")
	}
	if token != "" && !encrypted && !isLocal(target) {
		return fmt.Errorf(
			"clag: a token is not sent to %s in plain text: use WithTLS, or a loopback address", target)
	}
	return nil
}
