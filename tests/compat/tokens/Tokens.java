import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.CreateDelegationTokenOptions;
import org.apache.kafka.clients.admin.DescribeDelegationTokenOptions;
import org.apache.kafka.clients.admin.ExpireDelegationTokenOptions;
import org.apache.kafka.clients.admin.RenewDelegationTokenOptions;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.token.delegation.DelegationToken;

/** Uses delegation tokens, and logs in with one; or logs in with a bearer token of a file. */
public class Tokens {
    private static final String SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule";
    private static final String OAUTH =
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule";

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("delegation")) {
            delegation(arguments[1], arguments[2], arguments[3]);
        } else {
            bearer(arguments[1], arguments[2]);
        }
    }

    private static Properties settings(String address, String mechanism, String login) {
        Properties properties = new Properties();
        properties.putAll(Map.of(
                "bootstrap.servers", address,
                "security.protocol", "SASL_PLAINTEXT",
                "sasl.mechanism", mechanism,
                "sasl.jaas.config", login,
                "request.timeout.ms", "10000",
                "default.api.timeout.ms", "15000"));
        return properties;
    }

    private static String scram(String user, String password, String more) {
        return SCRAM + " required username=\"" + user + "\" password=\"" + password + "\"" + more + ";";
    }

    private static void delegation(String address, String user, String password) throws Exception {
        try (Admin admin = Admin.create(settings(address, "SCRAM-SHA-256", scram(user, password, "")))) {
            CreateDelegationTokenOptions options = new CreateDelegationTokenOptions()
                    .renewers(List.of(new KafkaPrincipal("User", "bob")))
                    .maxLifetimeMs(3_600_000);
            DelegationToken token = admin.createDelegationToken(options).delegationToken().get();
            System.out.println("owner " + token.tokenInfo().ownerAsString());
            DescribeDelegationTokenOptions of = new DescribeDelegationTokenOptions()
                    .owners(List.of(new KafkaPrincipal("User", user)));
            List<DelegationToken> found = admin.describeDelegationToken(of).delegationTokens().get();
            System.out.println("described " + found.contains(token));
            long renewed = admin.renewDelegationToken(token.hmac(),
                    new RenewDelegationTokenOptions().renewTimePeriodMs(60_000)).expiryTimestamp().get();
            System.out.println("renewed " + (renewed < token.tokenInfo().expiryTimestamp()));
            for (String mechanism : List.of("SCRAM-SHA-256", "SCRAM-SHA-512")) {
                String login = scram(token.tokenInfo().tokenId(), token.hmacAsBase64String(), " tokenauth=\"true\"");
                try (Admin delegate = Admin.create(settings(address, mechanism, login))) {
                    System.out.println(mechanism + " nodes " + delegate.describeCluster().nodes().get().size());
                    refused(() -> delegate.createDelegationToken().delegationToken().get());
                }
            }
            admin.expireDelegationToken(token.hmac(),
                    new ExpireDelegationTokenOptions().expiryTimePeriodMs(-1)).expiryTimestamp().get();
            refused(() -> admin.renewDelegationToken(token.hmac()).expiryTimestamp().get());
        }
    }

    private interface Call {
        void run() throws Exception;
    }

    private static void refused(Call call) throws Exception {
        try {
            call.run();
            System.out.println("accepted");
        } catch (ExecutionException refusal) {
            System.out.println(refusal.getCause().getClass().getSimpleName());
        }
    }

    private static void bearer(String address, String file) throws Exception {
        Properties properties = settings(address, "OAUTHBEARER", OAUTH + " required;");
        properties.put("sasl.oauthbearer.token.endpoint.url", file);
        properties.put("sasl.login.callback.handler.class",
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler");
        try (Admin admin = Admin.create(properties)) {
            refused(() -> System.out.println("nodes " + admin.describeCluster().nodes().get().size()));
        }
    }
}
