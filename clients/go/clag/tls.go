package clag

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
)

// TLSFromPEM makes a configuration for [WithTLS] of PEM blocks.
//
// roots is whom to trust; none trusts what the system trusts. certificate and key are our own,
// where the server asks for them; both or neither.
func TLSFromPEM(roots, certificate, key []byte) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(roots) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(roots) {
			return nil, errors.New("clag: the root certificates hold no certificate in PEM")
		}
	}
	if len(certificate) > 0 || len(key) > 0 {
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// TLSFromFiles is [TLSFromPEM] of files; an empty path is none.
func TLSFromFiles(roots, certificate, key string) (*tls.Config, error) {
	var read [3][]byte
	for i, path := range []string{roots, certificate, key} {
		if path == "" {
			continue
		}
		var err error
		if read[i], err = os.ReadFile(path); err != nil {
			return nil, err
		}
	}
	return TLSFromPEM(read[0], read[1], read[2])
}
