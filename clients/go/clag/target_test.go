package clag

import "testing"

func TestWhatStaysOnThisMachineIsLocal(t *testing.T) {
	for target, local := range map[string]bool{
		"/run/clag.sock":               true,
		"unix:/run/clag.sock":          true,
		"unix:clag.sock":               true,
		"unix-abstract:clag":           true,
		"localhost:7077":               true,
		"LocalHost:7077":               true,
		"127.0.0.1:7077":               true,
		"127.9.9.9":                    true,
		"[::1]:7077":                   true,
		"::1":                          true,
		"[::ffff:127.0.0.1]:7077":      true,
		"dns:///localhost:7077":        true,
		"passthrough:///[::1]:7077":    true,
		"ipv4:127.0.0.1:1,127.0.0.2:1": true,
		"ipv4:127.0.0.1:1,10.0.0.1:1":  false,
		"10.0.0.1:7077":                false,
		"[2001:db8::1]:7077":           false,
		"example.com:7077":             false,
		"localhost.example.com:7077":   false,
		"127.0.0.1.example.com:7077":   false,
		"dns://127.0.0.1/example.com":  false,
	} {
		if isLocal(target) != local {
			t.Errorf("isLocal(%q) is %v", target, !local)
		}
	}
}

func TestATokenDoesNotCrossANetworkInPlainText(t *testing.T) {
	if _, err := NewClient("example.com:7077", WithToken("secret")); err == nil {
		t.Error("it was accepted")
	}
	config, err := TLSFromPEM(nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, made := range []struct {
		target string
		option Option
	}{
		{"example.com:7077", WithTLS(config)},
		{"example.com:7077", WithToken("")},
		{"127.0.0.1:7077", WithToken("secret")},
	} {
		client, err := NewClient(made.target, WithToken("secret"), made.option)
		if err != nil {
			t.Error(made.target, err)
			continue
		}
		_ = client.Close()
	}
}

func TestAnEmptyTargetIsRefused(t *testing.T) {
	if _, err := NewClient(""); err == nil {
		t.Error("it was accepted")
	}
}

func TestPEMThatHoldsNothingIsRefused(t *testing.T) {
	if _, err := TLSFromPEM([]byte("nothing"), nil, nil); err == nil {
		t.Error("roots were accepted")
	}
	if _, err := TLSFromPEM(nil, []byte("nothing"), nil); err == nil {
		t.Error("a certificate was accepted")
	}
	if _, err := TLSFromFiles("/nowhere/ca.pem", "", ""); err == nil {
		t.Error("a missing file was accepted")
	}
}
